"""A classifier, a score and a calibration: verdicts, and a detector on disk."""
