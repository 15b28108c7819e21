"""Flower's ClientApp of a simulation: a node is whichever client it is asked to be.

Lives in an importable module so that a worker process keeps its caches between messages.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from orchestra_flwr.config import Config
from orchestra_flwr.federation.answers import answer, train_reply
from orchestra_flwr.federation.client import OrchestraClient
from orchestra_flwr.federation.object_store import beside_the_pickle
from orchestra_flwr.federation.population import Population, load_population
from orchestra_flwr.federation.wire import CONFIG
from orchestra_flwr.training import resolve_device

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Shows that this simulation's workers have started."""
    return Message(RecordDict(), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round of the client that the message names."""

    def work(content: RecordDict) -> RecordDict:
        task = content.config_records[CONFIG]
        return train_reply(_client(str(task["config"]), str(task["client"])), content)

    return beside_the_pickle(answer(message, work))


def _client(config_json: str, name: str) -> OrchestraClient:
    population, images = _population(config_json)
    chosen = torch.from_numpy(population.parts[name]).to(images.device)
    return OrchestraClient(Config.from_json(config_json), name, images[chosen])


@lru_cache(maxsize=1)
def _population(config_json: str) -> tuple[Population, Tensor]:
    """The clients' parts and all training images, on the device; once a process and run."""
    config = Config.from_json(config_json)
    population = load_population(config)
    return population, population.dataset.train.images.to(resolve_device(config.device))
