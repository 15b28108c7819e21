"""Plug-ins of `start.py`."""
