"""The report of many runs: tables and charts, written as Markdown, of which a page is made."""
