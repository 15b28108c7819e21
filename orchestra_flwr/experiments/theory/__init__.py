"""The linear theory of Dec-SSL, as a simulation of seconds."""
