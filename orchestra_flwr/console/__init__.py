"""Output on a terminal or in a log."""
