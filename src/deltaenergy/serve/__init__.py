"""`deltaenergy serve`: verdicts over HTTP, and a page to try them on (extra `serve`)."""
