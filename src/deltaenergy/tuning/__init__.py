"""Tuning: a few labelled images per class in, a tuned Classifier out, through one loop."""
