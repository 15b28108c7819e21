"""What travels between server and clients, and the checks of it."""
