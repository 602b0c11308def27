"""Classifiers turn image features into similarities per class: zero-shot from names, or tuned on a few images."""
