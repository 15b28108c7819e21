"""Local training: what is trained, the one loop that trains it, its optimizers."""

from orchestra_flwr.models import resolve_device
from orchestra_flwr.training.client_threads import client_threads, is_beside_others
from orchestra_flwr.training.devices import cores_for_clients, torch_threads
from orchestra_flwr.training.learner import Learner, build_learner
from orchestra_flwr.training.local_round import LocalResult, observe_round, train_round
from orchestra_flwr.training.model_check import check_model
from orchestra_flwr.training.warm_start import first_weights, starting_learner

__all__ = [
    "Learner",
    "LocalResult",
    "build_learner",
    "check_model",
    "client_threads",
    "cores_for_clients",
    "first_weights",
    "is_beside_others",
    "observe_round",
    "resolve_device",
    "starting_learner",
    "torch_threads",
    "train_round",
]
