"""Statistics: ranking, metrics, resampling, thresholds."""
