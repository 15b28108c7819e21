"""What a terminal is shown, and how it is kept readable."""
