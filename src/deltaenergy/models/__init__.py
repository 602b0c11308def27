"""Models turn images and texts into unit features: any CLIP in transformers format, and the bundled `lite`."""
