"""Certificates and keys of a federation on separate machines: the command and its functions.

``orchestra-keys --help``. A file that is missing, unreadable, damaged or
out of date, and files that do not belong together, raise a ConfigError that says what to do.
"""
