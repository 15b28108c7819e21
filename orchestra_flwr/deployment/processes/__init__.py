"""What runs on the machines of a federation: our processes, and those of Flower below them.

Nothing is imported here: the commands import torch only once their configuration is checked.
"""
