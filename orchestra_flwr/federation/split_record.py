"""What a simulation leaves behind about its split: a picture, and the counts with their EMD."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from orchestra_flwr.config import Config
from orchestra_flwr.data import UNLABELLED, Partition, class_counts, earth_movers_distance
from orchestra_flwr.federation.population import Population
from orchestra_flwr.files import write_atomically
from orchestra_flwr.reporting import RunFolder


@contextmanager
def recorded_split(config: Config, population: Population, folder: RunFolder) -> Iterator[None]:
    """Writes `partition.json` and, in a thread beside the block, `partition.png`.

    The file has the images by client and class, `emd` (:func:`earth_movers_distance` of the class
    shares; images without a label count as a class) and, where other groups than the classes are
    spread, `group_emd` of these.

    Raises:
        OSError: names the file that could not be written.
    """
    parts, train = list(population.parts.values()), population.dataset.train
    facts: dict[str, Any] = {"partition": config.partition.name, "shift": config.shift.name}
    if train.labels is None:
        counts, names = np.array([[len(part)] for part in parts]), ["images"]
    else:
        names, labels = list(train.classes), train.labels
        unlabelled = labels == UNLABELLED
        if unlabelled.any():
            labels = labels.masked_fill(unlabelled, len(names))
            names.append("no label")
        counts = class_counts(parts, labels, len(names))
        facts["emd"] = earth_movers_distance(counts)
    plugin: Partition = config.partition.build()
    if type(plugin).groups is not Partition.groups:
        groups, group_names = plugin.groups(train)
        if groups is not None:
            facts["group_emd"] = earth_movers_distance(
                class_counts(parts, groups, len(group_names))
            )
    by_client = dict(zip(population.parts, counts.tolist(), strict=True))
    facts |= {"classes": names, "clients": by_client}
    write_atomically(folder.path / "partition.json", (json.dumps(facts) + "\n").encode())

    def draw() -> None:
        from orchestra_flwr.reporting import plots  # a second of imports

        plots.plot_partition(
            counts,
            None if train.labels is None else names,
            folder.path / "partition.png",
            clients=list(population.parts),
            emd=facts.get("emd"),
            name=folder.label,
        )

    with ThreadPoolExecutor(1, "split") as beside:
        picture = beside.submit(draw)
        yield
    picture.result()
