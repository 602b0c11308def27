"""Why an image was judged as it was: its ΔEnergy taken apart, what masking does, and what speaks against it."""
