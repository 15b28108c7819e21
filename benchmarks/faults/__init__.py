"""Faults in real federations: what is started, what is done to it, what must hold afterwards."""
