"""From a folder or the Hugging Face Hub to a model."""
