"""Flower's ClientApp of a simulation: a node is whichever client it is asked to be.

Lives in an importable module so that a worker process keeps its caches between messages.
"""

import contextlib
import logging
import platform
import threading
from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from orchestra_flwr.config import Config
from orchestra_flwr.console.quiet_logger import quiet_logger
from orchestra_flwr.data import Dataset, limited_dataset, shift_images
from orchestra_flwr.federation.attacks import Attack, attackers, poisoned_images
from orchestra_flwr.federation.client.answers import answer, evaluate_reply, train_reply
from orchestra_flwr.federation.client.numpy_client import OrchestraClient
from orchestra_flwr.federation.client.secure_answers import simulated_answer
from orchestra_flwr.federation.client.state_folder import ClientStateFolder
from orchestra_flwr.federation.messages.fields import (
    CLIENTS,
    CONFIG,
    FROZEN_FOLDER,
    RUN,
    SECURE_STAGE,
    SPLIT,
)
from orchestra_flwr.federation.messages.frozen_weights import FrozenStore
from orchestra_flwr.federation.population import (
    Population,
    evaluation_dataset,
    load_population,
    own_classes,
)
from orchestra_flwr.files import folder_name
from orchestra_flwr.methods import labels_for
from orchestra_flwr.training import Learner, build_learner, resolve_device

app = ClientApp()
_LOADING = threading.RLock()  # clients in threads wait for the one that reads the images


@app.query()
def query(message: Message, context: Context) -> Message:
    """Shows that a worker has started; one that is sent a configuration loads that run's images."""
    task = message.content.config_records.get(CONFIG)
    if task is not None:
        with contextlib.suppress(Exception):  # a round will say what is wrong
            _loaded(str(task["config"]))
    return Message(RecordDict(), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round of the client that the message names."""
    return answer(message, _trained)


def _trained(content: RecordDict) -> RecordDict:
    task = content.config_records[CONFIG]
    if SECURE_STAGE not in task:
        return train_reply(_addressed_client(content), content)
    return simulated_answer(str(task["client"]), content, lambda: _addressed_client(content))


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """The named client's scores of the averaged encoder on its own images."""
    return answer(message, lambda content: evaluate_reply(_addressed_client(content), content))


def _addressed_client(content: RecordDict) -> OrchestraClient:
    task = content.config_records[CONFIG]
    config_json, name = str(task["config"]), str(task["client"])
    config, population, images, labels = _loaded(config_json, str(task.get(SPLIT, "")))
    indices = torch.from_numpy(population.parts[name])
    chosen = indices.to(images.device)
    shifted = shift_images(config.shift, images[chosen], indices, name, config.seed)
    own_labels = None if labels is None else labels[chosen]
    folder = None
    if RUN in task:
        folder = ClientStateFolder(Path(str(task[CLIENTS])) / folder_name(name), str(task[RUN]))
    classes_of_client = None
    if config.evaluation.clients:
        with _LOADING:
            evaluated = _evaluated(config_json)
        classes_of_client = own_classes(config, population, name, evaluated)
    classes = population.dataset.train.labels if config.evaluation.personal_by_clients else None
    attack: Attack | None = None
    if name in attackers(config, list(population.parts)):
        attack = config.attack.build()
        shifted = poisoned_images(config, attack, shifted)
    return OrchestraClient(
        config,
        name,
        shifted,
        own_labels,
        state_folder=folder,
        own_classes=classes_of_client,
        personal=None if classes is None else classes[indices],
        frozen_store=FrozenStore(Path(str(task[FROZEN_FOLDER]))) if FROZEN_FOLDER in task else None,
        untrained=_untrained(config_json) if images.is_cuda else None,
        attack=attack,
    )


def forget_images() -> None:
    """Lets the next run in this process read its images anew: files may have changed."""
    with _LOADING:
        for cached in (_load, _built, _evaluated):
            cached.cache_clear()


def _loaded(config_json: str, split: str = "") -> tuple[Config, Population, Tensor, Tensor | None]:
    """The run, its clients' parts, all training images and, if the method needs them, their labels.

    On the device; loaded once per process and run.

    Raises:
        ValueError: clients have other images here than the server's `split` says.
    """
    with _LOADING:
        loaded = _load(config_json)
    if split and loaded[1].split != split:
        raise ValueError(
            f"the images on {platform.node()} are others than those that the run began with: files "
            "were added, removed or renamed, or this machine has other ones"
        )
    return loaded


@lru_cache(maxsize=1)
def _load(config_json: str) -> tuple[Config, Population, Tensor, Tensor | None]:
    config = Config.from_json(config_json)
    device = resolve_device(config.device)
    with quiet_logger("orchestra_flwr.data", logging.ERROR):  # the server has warned of the same
        population = load_population(config)
    train = population.dataset.train
    labels = labels_for(config, train)
    labels = None if labels is None else labels.to(device)
    return config, population, train.images.to(device), labels


def _untrained(config_json: str) -> Learner:
    """What each client begins with, on the device; built once per process and run.

    Used on a GPU, where clients in threads would wait for one another to draw from torch's global
    generator. On a CPU, building takes little time beside training, and a copy would take memory.
    """
    with _LOADING:
        return _built(config_json)


@lru_cache(maxsize=1)
def _built(config_json: str) -> Learner:
    config, _, images, _ = _load(config_json)
    return build_learner(config, images.shape[1]).to(images.device)


@lru_cache(maxsize=1)
def _evaluated(config_json: str) -> Dataset:
    """The images on which the server, too, evaluates encoders; once per process and run."""
    config, population, *_ = _load(config_json)
    return limited_dataset(evaluation_dataset(config, population), config.evaluation.limit)
