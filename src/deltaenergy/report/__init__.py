"""Reports that open offline: one HTML file with plots, tables, pictures and how it was made."""
