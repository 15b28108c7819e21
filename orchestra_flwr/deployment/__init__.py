"""Real federations: server and clients as processes on separate machines."""
