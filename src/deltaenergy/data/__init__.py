"""Images in: folders, globs, tables, PIL images; the features that were computed from them; few-shot samples."""
