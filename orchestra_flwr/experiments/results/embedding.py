"""Test images in the plane: t-SNE of a saved encoder's features."""

import json
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from orchestra_flwr.config import ConfigError
from orchestra_flwr.data import balanced_subset, load_dataset
from orchestra_flwr.experiments.results.runs import Run, is_of_saved_weights, saved_weights
from orchestra_flwr.files import read_json, write_atomically
from orchestra_flwr.models import extract_features, load_encoder
from orchestra_flwr.use.image_map import place_images

FILE = "embedding.json"  # in the run folder; once it is made, the images are no longer needed
MAX_IMAGES = 2000  # more would be slow, and hide each other
SEED = 0  # of t-SNE


class Embedding(NamedTuple):
    """Points (n, 2), their labels (n,) and the names of the classes."""

    points: NDArray[np.float64]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]


def embed(run: Run) -> Embedding:
    """Where a run's test images lie by t-SNE of their backbone features (:func:`place_images`).

    At most 2,000 images in equal shares of the classes. The result is stored in the run folder, and
    read back as long as the run saves the same weights.

    Raises:
        ConfigError: the run's images are missing, or no test images have labels.
        FileNotFoundError: the run saved no encoder.
    """
    file = run.folder / FILE
    if stored := _stored(file):
        return stored
    digest = saved_weights(run.folder)  # first: a run that goes on may replace the encoder
    encoder = load_encoder(run.folder)
    test = load_dataset(run.config.data).test
    if test is None or test.labels is None:
        root = run.config.data.options.get("root")
        raise ConfigError(f"data.root={root}: holds no labelled test images")
    chosen = test.select(
        torch.from_numpy(balanced_subset(test.labels.numpy(), len(test), MAX_IMAGES))
    )
    features = extract_features(encoder, chosen.images, run.config.evaluation.batch_size)
    points = place_images(features, SEED)
    assert chosen.labels is not None
    embedding = Embedding(points, chosen.labels.numpy(), chosen.classes)
    values = {
        "points": np.round(points, 4).tolist(),
        "labels": embedding.labels.tolist(),
        "classes": list(embedding.classes),
        "weights_sha256": digest,
    }
    write_atomically(file, (json.dumps(values) + "\n").encode())
    return embedding


def _stored(file: Path) -> Embedding | None:
    """What a run folder's file holds; None if it is missing, damaged or of other weights."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        read = read_json(file)
        points = np.array(read["points"], np.float64).reshape(-1, 2)
        labels, classes = np.array(read["labels"], np.int64), tuple(map(str, read["classes"]))
        if labels.shape == points.shape[:1] and is_of_saved_weights(file, read, file.parent):
            return Embedding(points, labels, classes)
    return None
