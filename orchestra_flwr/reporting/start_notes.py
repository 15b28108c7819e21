"""Notes on a run's images and network before it begins."""

from collections.abc import Iterator

from orchestra_flwr.config import Config
from orchestra_flwr.data import Dataset, shrink_warning


def start_notes(config: Config, dataset: Dataset | None, batch_norm: str) -> Iterator[str]:
    """One line for each note.

    Args:
        dataset: the images that encoders are evaluated with, if any.
        batch_norm: of the server's model, as :meth:`BatchNormPolicy.of_servers_model` says it.
    """
    yield _images(config)
    if dataset is not None and (warning := shrink_warning(dataset)):
        yield warning
    limit = config.evaluation.limit
    if dataset is not None and limit in (len(dataset.train), len(dataset.test or ())):
        test = "" if dataset.test is None else f" and {len(dataset.test):,} test"
        yield (
            f"encoders are evaluated with {len(dataset.train):,} training{test} images "
            f"(evaluation.limit={limit}; null: all)"
        )
    if batch_norm == "frozen":
        yield (
            "BatchNorm keeps the means and variances that the network begins with "
            "(model.batch_norm=frozen); model.batch_norm=averaged would train them"
        )
    if batch_norm == "initial":
        yield (
            "the server's BatchNorm is not trained, and the server has too few images for its "
            "statistics: the saved encoder has initial ones; model.norm=group needs none"
        )


def _images(config: Config) -> str:
    """The sizes of images and views."""
    line, views = _image_size(config), config.data.view_size
    if views == config.data.image_size:
        return line
    return f"{line}; trained on views of {views} x {views} pixels (data.augmentation.view_size)"


def _image_size(config: Config) -> str:
    """The images' size and scaling, and those that the pretrained network expects."""
    size, by = config.data.image_size, config.data.normalise
    line = f"images: {size} x {size} pixels (data.image_size), data.normalise={by}"
    expected = config.model.plugin.trained_on(config.model)
    if expected is None:
        return line
    if expected == (size, by):
        return f"{line}, as the pretrained network expects"
    pixels = f"{expected.size} x {expected.size} pixels" if expected.size != size else ""
    scale = f"data.normalise={expected.normalise}" if expected.normalise != by else ""
    loss = ", and may lose more with fewer than training gains" if expected.size > size else ""
    different = ", ".join(filter(None, (pixels, scale)))
    return f"{line}; the pretrained network expects {different}{loss}"
