"""The insides of Flower: private names, each with the version that it was checked against.

Nothing is imported here: ``socket_server`` runs as a script, in a process that has Flower alone.
"""
