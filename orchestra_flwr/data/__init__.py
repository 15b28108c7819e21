"""Images: data sets, their partition over clients, batches and augmentation."""

from orchestra_flwr.data.augment import SIMCLR, Recipe, Views, augment
from orchestra_flwr.data.batches import epoch_batches
from orchestra_flwr.data.image_folder import survey
from orchestra_flwr.data.images import Dataset, ImageSet
from orchestra_flwr.data.partition import class_counts, partition
from orchestra_flwr.data.sources import load_dataset
from orchestra_flwr.data.subset import balanced_subset

__all__ = [
    "SIMCLR",
    "Dataset",
    "ImageSet",
    "Recipe",
    "Views",
    "augment",
    "balanced_subset",
    "class_counts",
    "epoch_batches",
    "load_dataset",
    "partition",
    "survey",
]
