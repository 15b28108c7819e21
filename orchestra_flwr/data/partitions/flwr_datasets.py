"""Flower's own partitioners, of its library flwr-datasets."""

import inspect
from typing import Any

import numpy as np
from pydantic import Field
from torch import Tensor

from orchestra_flwr.config import ConfigError, Section
from orchestra_flwr.console.printable import printable
from orchestra_flwr.data.partitions import Indices, Partition, check_all_labelled
from orchestra_flwr.extras import require
from orchestra_flwr.plugins import must_be_one_of

IMAGE, LABEL = "image", "label"  # the columns that a partitioner sees
SET_HERE = {"num_partitions": "federation.clients", "partition_by": "the classes", "seed": "seed"}
UNFIT = {
    "ContinuousPartitioner": "divides by a continuous value, images have classes",
    "IdToSizeFncPartitioner": "needs a function",
    "VerticalEvenPartitioner": "divides columns, not images",
    "VerticalSizePartitioner": "divides columns, not images",
}


class FlwrDatasets(Partition):
    """The split that a class of `flwr_datasets.partitioner` makes from the images' classes.

    The run sets the number of clients, the column of the classes and the seed; all other arguments
    are in `partition.options`.
    """

    class Settings(Section):
        partitioner: str = "IidPartitioner"  # the class in flwr_datasets.partitioner
        options: dict[str, Any] = Field(default_factory=dict)  # arguments of the class

    needs_labels = False

    def split(self, labels: Tensor | None, count: int, clients: int, seed: int) -> list[Indices]:
        """Asks the partitioner for each client's rows.

        Raises:
            ConfigError: flwr-datasets is not installed, there is no such partitioner, it needs
                labels and images have none, or it refuses its options or these images.
        """
        require("partition=flwr_datasets", "huggingface", "flwr_datasets")
        from datasets import Dataset

        kind = _partitioner(self.settings.partitioner)
        columns: dict[str, Any] = {IMAGE: np.arange(count)}
        if labels is not None:
            columns[LABEL] = labels.cpu().numpy()
        arguments = self._arguments(kind, clients, seed, labels is not None)
        if "partition_by" in arguments:
            check_all_labelled(f"partition.partitioner={kind.__name__}", labels)
        try:
            partitioner = kind(**arguments)
            partitioner.dataset = Dataset.from_dict(columns)
            if partitioner.num_partitions != clients:
                raise ValueError(
                    f"it makes {partitioner.num_partitions} partitions, and federation.clients is "
                    f"{clients}"
                )
            parts = [partitioner.load_partition(client)[IMAGE] for client in range(clients)]
        except Exception as error:  # a partitioner may raise anything
            reason = printable(" ".join(str(error).split()))[:300]
            raise ConfigError(f"partition.partitioner={kind.__name__}: {reason}") from None
        return [np.sort(np.asarray(part[:], dtype=np.int64)) for part in parts]

    def _arguments(
        self, kind: type[Any], clients: int, seed: int, has_labels: bool
    ) -> dict[str, Any]:
        allowed = inspect.signature(kind).parameters
        ours = {"num_partitions": clients, "partition_by": LABEL, "seed": seed}
        if "partition_by" in allowed and not has_labels:
            raise ConfigError(
                f"partition.partitioner={kind.__name__}: needs labels, and these images have none, "
                "or several each; use partition=iid"
            )
        for name in self.settings.options:
            if name in SET_HERE:
                raise ConfigError(f"partition.options.{name}: is set by {SET_HERE[name]}")
            if name not in allowed:
                free = ", ".join(n for n in allowed if n not in SET_HERE) or "no options"
                raise ConfigError(
                    f"partition.options.{name}: unknown option of {kind.__name__}, which has {free}"
                )
        options = {
            name: np.asarray(value) if name.endswith("_array") else value
            for name, value in self.settings.options.items()
        }
        return {**{name: value for name, value in ours.items() if name in allowed}, **options}


def _partitioner(name: str) -> type[Any]:
    """The class of this name."""
    from flwr_datasets import partitioner

    kinds = [n for n in partitioner.__all__ if n != "Partitioner"]
    if name in UNFIT:
        raise ConfigError(f"partition.partitioner={name}: {UNFIT[name]}")
    if name not in kinds:
        fit = [n for n in kinds if n not in UNFIT]
        raise ConfigError(f"partition.partitioner={name}: {must_be_one_of(name, fit)}")
    kind: type[Any] = getattr(partitioner, name)
    return kind
