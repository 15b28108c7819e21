"""What a real client does with its server's messages, and what it refuses to do."""
