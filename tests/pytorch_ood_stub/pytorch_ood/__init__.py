"""A stand-in for pytorch-ood 0.4, whose torchvision cannot be had everywhere: its interfaces, and what they compute."""
