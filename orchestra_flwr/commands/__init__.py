"""What all commands have in common: flags, help texts, completion."""
