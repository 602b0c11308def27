"""The bundled demo model: EfficientNet-Lite0 for images, a small causal transformer for words."""
