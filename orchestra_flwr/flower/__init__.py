"""The insides of Flower and Ray: private names, which no other room touches.

Each file says which version it was checked against; `tests/flower/test_versions.py` says which one
broke it.

Nothing is imported here: ``socket_server`` runs as a script, in a process that has Flower alone.
"""
