"""Differential privacy of what clients send: noise, its cost, and records of releases."""
