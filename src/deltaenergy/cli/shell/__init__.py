"""What all commands share: options, output, endings."""
