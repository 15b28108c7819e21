"""Flower's ClientApp of a simulation: a node is whichever client it is asked to be.

Lives in an importable module so that a worker process keeps its caches between messages.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from orchestra_flwr.config import Config
from orchestra_flwr.federation.answers import answer, evaluate_reply, train_reply
from orchestra_flwr.federation.client import OrchestraClient
from orchestra_flwr.federation.object_store import beside_the_pickle
from orchestra_flwr.federation.own_state import OwnStateFolder
from orchestra_flwr.federation.population import Population, load_population
from orchestra_flwr.federation.wire import CLIENTS, CONFIG, RUN
from orchestra_flwr.methods import build_method, labels_for
from orchestra_flwr.training import resolve_device

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Shows that this simulation's workers have started."""
    return Message(RecordDict(), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round of the client that the message names."""
    done = answer(message, lambda content: train_reply(_addressed(content), content))
    return beside_the_pickle(done)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """The named client's scores of the averaged encoder on its own images."""
    return answer(message, lambda content: evaluate_reply(_addressed(content), content))


def _addressed(content: RecordDict) -> OrchestraClient:
    task = content.config_records[CONFIG]
    config_json, name = str(task["config"]), str(task["client"])
    population, images, labels = _population(config_json)
    chosen = torch.from_numpy(population.parts[name]).to(images.device)
    own_labels = None if labels is None else labels[chosen]
    keeps = None
    if RUN in task:
        keeps = OwnStateFolder(Path(str(task[CLIENTS])) / name, str(task[RUN]))
    config = Config.from_json(config_json)
    return OrchestraClient(config, name, images[chosen], own_labels, keeps=keeps)


@lru_cache(maxsize=1)
def _population(config_json: str) -> tuple[Population, Tensor, Tensor | None]:
    """The clients' parts, all training images and, if the method needs them, their labels.

    On the device; once a process and run.
    """
    config = Config.from_json(config_json)
    device = resolve_device(config.device)
    population = load_population(config)
    train = population.dataset.train
    labels = labels_for(build_method(config, config.data.channels), train)
    return population, train.images.to(device), None if labels is None else labels.to(device)
