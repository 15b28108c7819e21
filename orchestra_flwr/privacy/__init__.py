"""What may be learned about a client from what is sent, and what is done against it."""
