"""Files at URLs."""
