"""The local channel between the processes that Flower starts and ours.

Nothing is imported here: ``relay_app`` is started for every message and has to start fast.
"""
