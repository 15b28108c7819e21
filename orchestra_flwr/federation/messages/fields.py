"""The names of what stands in messages."""

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

ARRAYS = "arrays"  # the ArrayRecord of a message, both ways
CONFIG = "config"  # the ConfigRecord of a message, both ways
METRICS = "metrics"  # the MetricRecord of a reply
SMALLEST_GROUP = "smallest_group"  # a reply's metric: images behind its smallest row, 0 without
LOCAL_SCORES = "own/"  # prefix of a reply's scores of the client's own model
PERSONAL = LOCAL_SCORES + "personal"  # the score that a real client need not send
MODEL = "model"  # in a reply's config: the model that was trained, where several were sent
MODELS = "models"  # in a task: the names of the models that are sent
REGISTERED = "registered"  # in a greeting: the name of the client's key at the server
RUN = "run"  # in a task: which run this is, where clients keep state
TRAINED = "trained"  # in a task: the latest round in which a real client's state was used
# In a reply's config, where the server used a later state of this client than it has: the round of
# the one that it went on from, 0 if it began afresh
STATE_OF = "state_of"
CONTRIBUTED = "contributed"  # in a task: the latest one in which rows that it sent were
FROZEN = "frozen"  # in greetings and tasks: the frozen weights' digest; in first tasks their array
FROZEN_FOLDER = "frozen_folder"  # in a task: where the weights are, if clients share the disk
SPLIT = "split"  # in a simulation's task: which images each client has, as a fingerprint
CLIENTS = "clients"  # in a task: the folder for the clients' state, if they share the disk
# Delivery of the encoder: the kind of message; in it, the texts of `encoder.json` and of the model
# card, the size of the weights in bytes, and their array ENCODER. A client answers with one word.
ENCODER_KIND = "query.encoder"
ENCODER, ENCODER_CARD, ENCODER_SIZE = "encoder", "card", "size"
WANTED, STORED, TOO_LARGE = "wanted", "stored", "too_large"
# Secure aggregation, in tasks and replies: the stage, its content (JSON) and, for simulated clients
# alone, what a client remembers until the next stage.
SECURE_STAGE, SECURE_TEXT, SECURE_STATE = "secure_stage", "secure_text", "secure_state"


def with_prefix(values: Mapping[str, T], prefix: str) -> dict[str, T]:
    """The values whose names begin with a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}
