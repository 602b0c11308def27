"""The command line: one file per subject, without logic."""
