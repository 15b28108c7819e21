"""The local channel between the server's process and that of its federation."""
