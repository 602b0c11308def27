"""What all commands share: the application, options, results, endings."""
