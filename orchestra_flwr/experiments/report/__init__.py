"""The report of many runs: tables and charts in Markdown, and the same as an HTML page."""
