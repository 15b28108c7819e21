"""The server: its models, rounds and run folder."""
