"""The report of many runs: tables and charts as blocks, written as HTML and Markdown."""
