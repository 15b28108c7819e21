"""Images: sources, their partition over clients, shifts, batches and augmentation."""

from orchestra_flwr.data.augment import PLAIN, SIMCLR, Recipe, Views, augment
from orchestra_flwr.data.batches import epoch_batches, local_epochs
from orchestra_flwr.data.image_files.class_folders import survey
from orchestra_flwr.data.images import (
    UNLABELLED,
    Dataset,
    ImageSet,
    count_distinct,
    first_occurrences,
    shrink_warning,
)
from orchestra_flwr.data.partitions import (
    Partition,
    class_counts,
    earth_movers_distance,
    partition,
    partition_by_name,
    try_partition,
)
from orchestra_flwr.data.shifts import Shift, shift_images
from orchestra_flwr.data.sources import Source, load_dataset
from orchestra_flwr.data.subset import balanced_subset, beyond_limit, limited, limited_dataset

__all__ = [
    "PLAIN",
    "SIMCLR",
    "UNLABELLED",
    "Dataset",
    "ImageSet",
    "Partition",
    "Recipe",
    "Shift",
    "Source",
    "Views",
    "augment",
    "balanced_subset",
    "beyond_limit",
    "class_counts",
    "count_distinct",
    "earth_movers_distance",
    "epoch_batches",
    "first_occurrences",
    "limited",
    "limited_dataset",
    "load_dataset",
    "local_epochs",
    "partition",
    "partition_by_name",
    "shift_images",
    "shrink_warning",
    "survey",
    "try_partition",
]
