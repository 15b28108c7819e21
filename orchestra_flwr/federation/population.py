"""The simulated population: all images and which client holds which."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orchestra_flwr.config import Config, ConfigError
from orchestra_flwr.data import Dataset, load_dataset, partition
from orchestra_flwr.methods import METHODS, Method, labels_for


@dataclass(frozen=True)
class Population:
    """A dataset and its split.

    Attributes:
        dataset: training and test images.
        parts: for each client, by its name, the indices of its training images, ascending.
    """

    dataset: Dataset
    parts: dict[str, np.ndarray]


def load_population(config: Config) -> Population:
    """Loads the images and splits them; the same everywhere for the same configuration.

    Raises:
        ConfigError: images that cannot be had, or a split that they do not allow.
    """
    dataset = load_dataset(config.data)
    train = dataset.train
    clients = config.federation.clients
    parts = partition(config.partition, train.labels, len(train), clients, config.seed)
    names = [str(client) for client in range(clients)]
    if config.partition.name == "by_class" and train.labels is not None:
        names = [train.classes[label] for label in np.unique(train.labels)]
    return Population(dataset, dict(zip(names, parts, strict=True)))


def with_class_names(config: Config, population: Population) -> Config:
    """The configuration with the names of the images' classes, where a method has to know them.

    A simulation has all images. Real clients hold some of the classes, and have to be told.
    """
    method = METHODS.get(config.method.name)
    wanted = method is not None and "classes" in method.Settings.model_fields
    known = config.method.options.get("classes") or config.data.classes
    if not wanted or known or population.dataset.train.labels is None:
        return config
    names = {"classes": list(population.dataset.train.classes)}
    return config.model_copy(update={"method": config.method.model_copy(update=names)})


def check_population(config: Config, population: Population, method: Method) -> None:
    """Tells, before anything is written, what the method lacks for these images.

    Raises:
        ConfigError: labels that the images do not have, or other classes; all clients have fewer
            than `privacy.k_min` images, or one has too many for `privacy.delta`.
    """
    labels_for(method, population.dataset.train)
    most = max(map(len, population.parts.values()))
    config.check_images(most)
    if method.contribution_limits() and most < config.privacy.k_min:
        raise ConfigError(
            f"privacy.k_min={config.privacy.k_min}: no client could send centroids, "
            f"must be at most {most}, the most images of a client"
        )
