"""The bundled demonstration model: EfficientNet-Lite0 for pictures, a small causal transformer for words."""
