"""The record of a simulation's split: a picture, and the counts with their EMD."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestra_flwr.config import Config, ConfigError
from orchestra_flwr.data import Partition, class_counts, earth_movers_distance
from orchestra_flwr.federation.population import Population
from orchestra_flwr.files import read_json, write_atomically
from orchestra_flwr.reporting import RunFolder

logger = getLogger("orchestra_flwr.federation")

FILE = "partition.json"


def check_split(config: Config, population: Population) -> None:
    """Refuses to resume a run with other images, judged by the numbers in its folder.

    As many others, or the same ones with other names, get a warning (:attr:`Population.split`).

    Raises:
        ConfigError: clients hold other numbers of images than when the run began.
    """
    if config.resume is None:
        return
    now = _counts(population)[0]
    try:
        record = read_json(Path(config.resume) / FILE)
        before = record["clients"].values()
        same = sorted(before) == sorted(now.tolist())  # names may be those of another version
        total = sum(map(sum, before))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # there is nothing to compare the images with
    if not same:
        raise ConfigError(
            f"resume={config.resume}: these are other images than the run began with ({total:,} "
            f"then, {now.sum():,} now), or clients hold others; data.root may only name another "
            "place of the same ones"
        )
    if record.get("split", population.split) != population.split:  # earlier versions wrote none
        logger.warning(
            "resume=%s: files, labels or clients have other names or another order than when the "
            "run began, or are other ones; it goes on with those that are there now",
            config.resume,
        )


def _counts(population: Population) -> tuple[NDArray[np.int64], list[str]]:
    """(clients, classes) images, and the names of the classes; one column without labels."""
    parts, train = list(population.parts.values()), population.dataset.train
    if train.labels is None:
        return np.array([[len(part)] for part in parts]), ["images"]
    counts = class_counts(parts, train.labels, len(train.classes))
    names = [*train.classes, "no label"]  # the last one is only counted if there are such images
    return counts, names[: counts.shape[1]]


@contextmanager
def recorded_split(config: Config, population: Population, folder: RunFolder) -> Iterator[None]:
    """Writes `partition.json` and, in a thread beside the block, `partition.png`.

    The file holds the number of images by client and class, :attr:`Population.split`, `emd`
    (:func:`earth_movers_distance` of the class shares; images without a label count as a class)
    and, where the partition spreads other groups than classes, their `group_emd`.

    Raises:
        OSError: names the file that could not be written.
    """
    train = population.dataset.train
    facts: dict[str, Any] = {"partition": config.partition.name, "shift": config.shift.name}
    counts, names = _counts(population)
    if train.labels is not None:
        facts["emd"] = earth_movers_distance(counts)
    plugin: Partition = config.partition.build()
    if type(plugin).groups is not Partition.groups:
        groups, group_names = plugin.groups(train)
        if groups is not None:
            facts["group_emd"] = earth_movers_distance(
                class_counts(list(population.parts.values()), groups, len(group_names))
            )
    by_client = dict(zip(population.parts, counts.tolist(), strict=True))
    facts |= {"classes": names, "clients": by_client, "split": population.split}
    write_atomically(folder.path / FILE, (json.dumps(facts) + "\n").encode())

    def draw() -> None:
        from orchestra_flwr.reporting import plots  # a second of imports

        figure = plots.partition_figure(
            counts,
            None if train.labels is None else names,
            clients=list(population.parts),
            emd=facts.get("emd"),
            name=folder.label,
        )
        plots.save_png(figure, folder.path / "partition.png")

    with ThreadPoolExecutor(1, "split") as beside:
        picture = beside.submit(draw)
        yield
    picture.result()
