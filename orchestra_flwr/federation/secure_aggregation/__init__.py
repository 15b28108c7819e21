"""Rounds whose results the server sees as one sum only (:mod:`orchestra_flwr.privacy.secure_sums`).

With `privacy.secure_aggregation=true` the one stage of a round becomes the six of the protocol;
training is part of the fourth.
"""
