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

FILE = "embedding.json"  # in the run folder; once it is made, the images are no longer needed
MAX_IMAGES = 2000  # more would be slow, and hide each other
PERPLEXITY = 30


class Embedding(NamedTuple):
    """Points (n, 2), their labels (n,) and the names of the classes."""

    points: NDArray[np.float64]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]


def embed(run: Run) -> Embedding:
    """The t-SNE embedding (van der Maaten & Hinton, 2008) of a run's test images.

    At most 2,000 images in equal shares of the classes, L2-normalised backbone features. The result
    is stored in the run folder and read back as long as the run saves the same weights.

    Raises:
        ConfigError: the run's images are missing, or no test images have labels.
        FileNotFoundError: the run saved no encoder.
    """
    file = run.folder / FILE
    if stored := _stored(file):
        return stored
    encoder = load_encoder(run.folder)
    test = load_dataset(run.config.data).test
    if test is None or test.labels is None:
        root = run.config.data.options.get("root")
        raise ConfigError(f"data.root={root}: holds no labelled test images")
    chosen = test.select(
        torch.from_numpy(balanced_subset(test.labels.numpy(), len(test), MAX_IMAGES))
    )
    features = extract_features(encoder, chosen.images, run.config.evaluation.batch_size)
    points = project(torch.nn.functional.normalize(features, dim=1).numpy())
    assert chosen.labels is not None
    embedding = Embedding(points, chosen.labels.numpy(), chosen.classes)
    values = {
        "points": np.round(points, 3).tolist(),
        "labels": embedding.labels.tolist(),
        "classes": list(embedding.classes),
        "weights_sha256": saved_weights(run.folder),
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


def project(features: NDArray[np.float32]) -> NDArray[np.float64]:
    """t-SNE of (n, d) features to (n, 2), started from principal components; deterministic."""
    from sklearn.manifold import TSNE  # takes a second to import

    perplexity = min(PERPLEXITY, (len(features) - 1) / 3)
    tsne = TSNE(n_components=2, init="pca", perplexity=perplexity, random_state=0)
    return np.asarray(tsne.fit_transform(features), dtype=np.float64)
