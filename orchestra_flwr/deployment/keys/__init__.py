"""Certificates and keys of a federation on separate machines: the command and its functions.

``python -m orchestra_flwr.deployment.keys --help``.
"""
