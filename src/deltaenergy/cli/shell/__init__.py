"""Shared by all commands: the application, options, results, exit codes."""
