"""The commands: each file has those of one subject, which register themselves (`shell.app`)."""
