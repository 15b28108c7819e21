"""The simulated population: all images and which client holds which."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orchestra_flwr.config import Config, ConfigError
from orchestra_flwr.data import (
    UNLABELLED,
    Dataset,
    ImageSet,
    Shift,
    count_distinct,
    limited_dataset,
    load_dataset,
    partition_by_name,
    shift_images,
    try_partition,
)
from orchestra_flwr.evaluation import OwnClasses
from orchestra_flwr.evaluation.linear_probe import penalty_of
from orchestra_flwr.federation.aggregations import try_aggregation
from orchestra_flwr.federation.clocks import Clock, Device
from orchestra_flwr.methods import check_client, labels_for, release_of
from orchestra_flwr.methods.labels import check_any_labels, shown_labels, with_class_names
from orchestra_flwr.models import BatchNormPolicy
from orchestra_flwr.seeding import torch_generator

TRIED = 4  # images


@dataclass(frozen=True)
class Population:
    """A dataset and its split."""

    dataset: Dataset  # training and test images
    parts: dict[str, np.ndarray]  # indices of each client's training images, ascending

    @cached_property
    def split(self) -> str:
        """A fingerprint of which images each client has, by their order, names and labels.

        Pixels are not compared: decoders of two machines may differ in the last bit.
        """
        train, digest = self.dataset.train, hashlib.sha256()
        for client, part in self.parts.items():
            digest.update(f"{client}\0{len(part)}\0".encode(errors="surrogateescape"))
            digest.update(part.astype(np.int64).tobytes())
        if train.targets is not None:
            digest.update(train.targets.numpy().tobytes())
        digest.update("\0".join(train.files).encode(errors="surrogateescape"))
        return digest.hexdigest()[:16]


def load_population(
    config: Config, listed: Callable[[Dataset], None] = lambda dataset: None
) -> Population:
    """Loads the images and splits them; the same everywhere for the same configuration.

    Args:
        listed: as in :func:`load_dataset`.

    Raises:
        ConfigError: the images cannot be loaded, or do not allow the split.
    """
    dataset = load_dataset(config.data, listed)
    _check_any_images(config, dataset)
    clients = config.federation.clients
    parts = partition_by_name(config.partition, dataset.train, clients, config.seed)
    return Population(dataset, parts)


def _check_any_images(config: Config, dataset: Dataset) -> None:
    """Refuses a source without images, before the number of clients is blamed."""
    if not len(dataset.train):
        raise ConfigError(
            f"data={config.data.name}: {config.data.plugin.__name__} must give training images, "
            "and gave none"
        )


def evaluation_dataset(config: Config, population: Population) -> Dataset:
    """The images on which a simulation's encoders are evaluated.

    Training images are those with a label. With `evaluation.training_images=shifted` they look as
    the clients see them, and those that no client has are left out. With `labels.fraction` the data
    set says which labels are shown.
    """
    dataset, images = population.dataset, population.dataset.train
    shown = _shown(config, population)
    if config.evaluation.training_images == "shifted":
        indices = torch.from_numpy(np.concatenate(list(population.parts.values())))
        pixels = [
            shift_images(config.shift, images.images[part], part, client, config.seed)
            for client, part in ((c, torch.from_numpy(p)) for c, p in population.parts.items())
        ]
        images = replace(images.select(indices), images=torch.cat(pixels))
        shown = None if shown is None else shown[indices]
    if shown is not None and images.labels is not None:
        shown = shown[images.labels != UNLABELLED]
    return replace(dataset, train=images.labelled, shown=shown)


def _shown(config: Config, population: Population) -> Tensor | None:
    """(N,) bool: the training images whose labels the clients show; None: all of them."""
    labels = population.dataset.train.labels
    if config.labels.fraction is None or labels is None:
        return None
    shown = torch.zeros(len(labels), dtype=torch.bool)
    for client, part in population.parts.items():
        indices = torch.from_numpy(part)
        shown[indices] = shown_labels(config, labels[indices], client) != UNLABELLED
    return shown


def own_classes(
    config: Config, population: Population, client: str, evaluated: Dataset
) -> OwnClasses:
    """What a client's own model is evaluated on (`evaluation.clients`).

    Args:
        evaluated: :func:`evaluation_dataset`, within `evaluation.limit`.

    Raises:
        ConfigError: images have no labels, or no test image is of a class that the client has.
    """
    train, test = evaluated.train.labelled, evaluated.test
    _check_scored(config, population.dataset)
    assert train.labels is not None and test is not None and test.labels is not None
    everything, rows = population.dataset.train, torch.from_numpy(population.parts[client])
    assert everything.labels is not None
    rows = rows[everything.labels[rows] != UNLABELLED]
    held = everything.labels[rows]
    if not torch.isin(held, test.labels).any():
        raise ConfigError(
            f"evaluation.clients=true: there is no test image of any class of client {client}"
        )
    targets = labels_for(config, test)
    few, labels = None, config.evaluation.personal_labels
    if labels is not None:
        order = torch.randperm(
            len(rows), generator=torch_generator(config.seed, "personal", client)
        )
        chosen = rows[order[:labels]]
        images = everything.images[chosen]
        shifted = shift_images(config.shift, images, chosen, client, config.seed)
        few = shifted, everything.labels[chosen]
    penalty = penalty_of(config.evaluation.probe)
    bank, queries = (train.images, train.labels), (test.images, test.labels)
    return OwnClasses(bank, queries, targets, held, few, penalty)


def _check_scored(config: Config, dataset: Dataset) -> None:
    """Refuses to score clients where the images lack the labels for it."""
    train, test = dataset.train, dataset.test
    if config.evaluation.personal_by_clients and train.labels is None:
        raise ConfigError(
            f"evaluation.personal_labels={config.evaluation.personal_labels}: "
            f"data={config.data.name} must have training images with one label each"
            f"{_why_none(train)}"
        )
    tested = train.labels is not None and test is not None and test.labels is not None
    if config.evaluation.clients and not tested:
        raise ConfigError(
            f"evaluation.clients=true: data={config.data.name} must have training and test images "
            f"with one label each{_why_none(train)}"
        )


def _why_none(images: ImageSet) -> str:
    return "" if images.tags is None else "; its images have several (mAP scores them)"


def check_before_images(config: Config) -> None:
    """Refuses a simulation for what can be seen before any image is read.

    Raises:
        ConfigError: noise beside BatchNorm, a file that the partition cannot use, or an aggregation
            that does not make states.
    """
    # The server recalibrates with its images, which in a simulation are those of all clients.
    noise = config.privacy.noise_multiplier
    if noise > 0 and BatchNormPolicy.of(config).can_recalibrate:
        raise ConfigError(
            f"privacy.noise_multiplier={noise:g}: must be 0 in a simulation with "
            "model.norm=batch, whose statistics the saved encoder takes from the clients' own "
            "images, without noise; model.norm=group has none, model.batch_norm=frozen takes none"
        )
    config.partition.build().check_files(config.data.channels, config.data.image_size)
    try_aggregation(config)


def check_listing(config: Config, dataset: Dataset) -> None:
    """Refuses a simulation for what can be seen from its images' labels and files alone.

    Args:
        dataset: its images without pixels; not all need be readable.

    Raises:
        ConfigError: as :func:`load_population` and :func:`check_population`.
    """
    _check_any_images(config, dataset)
    check_any_labels(config, dataset.train)
    try_partition(config.partition, dataset.train, config.federation.clients, config.seed)
    labels_for(with_class_names(config, dataset.train.classes), dataset.train.labelled)
    _check_scored(config, dataset)


def check_population(config: Config, population: Population) -> None:
    """Refuses, before anything is written, images or clients that the run cannot use.

    Raises:
        ConfigError: the images lack labels, or have other classes; :meth:`Shift.check_images`,
            :meth:`ChecksClients.check_client` or :meth:`Exchange.check_clients` refuses; every
            client has fewer than `privacy.k_min` different images, or one has too many for
            `privacy.delta`; a table of devices cannot be read or lacks a client.
    """
    check_any_labels(config, population.dataset.train)
    labels_for(config, population.dataset.train)
    for client in population.parts:
        check_client(config, client)
    _check_devices(config, tuple(population.parts))
    config.exchange.build().check_clients(population.parts, config.federation.rounds)
    _check_scored(config, population.dataset)
    if config.evaluation.clients:
        evaluated = limited_dataset(population.dataset, config.evaluation.limit)
        for client in population.parts:
            own_classes(config, population, client, evaluated)
    shift: Shift = config.shift.build()
    shift.check_images(population.dataset.train)
    _try_shift(config, population)
    release = release_of(config)
    if release is None:
        return
    release.check_images(max(map(len, population.parts.values())))
    if release.min_images is None:
        return
    images, most = population.dataset.train.images, 0
    for part in population.parts.values():
        most = max(most, count_distinct(map(images.__getitem__, part), release.min_images))
        if most >= release.min_images:
            return  # one client that can is enough: usually the first, after so many images
    raise ConfigError(
        f"privacy.k_min={release.min_images}: no client could send {release.label}, "
        f"must be at most {most}, the largest number of different images that a client has"
    )


def _try_shift(config: Config, population: Population) -> None:
    """Refuses a shift that does not make images of a client's first few."""
    client, part = next(iter(population.parts.items()))
    indices = torch.from_numpy(part[:TRIED])
    images = population.dataset.train.images[indices]
    with config.shift.tried():
        shift_images(config.shift, images, indices, client, config.seed)


def _check_devices(config: Config, clients: Sequence[str]) -> None:
    clock: Clock = config.clock.build()
    devices: Any = clock.devices(clients, config.seed)
    if devices is None and not clock.keeps_time:
        return
    wanted = "a dictionary with a Device for each client"
    config.clock.check_returned("devices", devices, isinstance(devices, Mapping), wanted)
    for client in clients:
        if not isinstance(devices.get(client), Device):
            raise ConfigError(
                f"clock={config.clock.name}: {type(clock).__name__}.devices has no Device for "
                f"client {client}"
            )
