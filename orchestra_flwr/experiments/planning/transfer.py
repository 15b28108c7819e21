"""Other images that an experiment evaluates its encoders on (transfer)."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from orchestra_flwr.config import Config, ConfigError, DataConfig, EvaluateConfig, load
from orchestra_flwr.evaluation.saved import labelled_images
from orchestra_flwr.experiments.planning.description import Overrides
from orchestra_flwr.fingerprints import fingerprint_of

PROTOCOLS = "protocols=[linear,linear_10,linear_1]"  # one for each measure of transfer
ROOT = "transfer_root"  # the key of the experiment's command that says where the images are


def with_root(images: Overrides, root: str | None) -> Overrides:
    """Arguments of the evaluation's command that name the images and where they are."""
    return (*images, f"data.root={root}") if root else images


def transfer_name(images: Overrides, root: str | None) -> str | None:
    """The name of the evaluation by other images, unique to these images.

    Args:
        images: arguments of the evaluation's command that name them; empty: there are none.
        root: where they are; None: they need no path, or it is not given yet.

    Raises:
        ConfigError: the arguments do not compose, or there are no images for the root.
    """
    if not images:
        if root:
            raise ConfigError(
                f"{ROOT}={root}: the experiment evaluates its encoders on no other images at its "
                "scale"
            )
        return None
    data = _composed(with_root(images, root))
    digest = fingerprint_of(json.dumps([*images, data.label, PROTOCOLS]), digits=10)
    return f"transfer-{data.name}-{digest}"


def check_transfer(images: Overrides, root: str | None, configs: Iterable[Config]) -> None:
    """Reads the images as the evaluations will, which come after hours of training.

    Raises:
        ConfigError: they are missing, unlabelled or do not fit an encoder.
    """
    for channels, side in sorted({(c.data.channels, c.data.image_size) for c in configs}):
        data = _composed(with_root(images, root), side)
        with _of_other_images():
            labelled_images(data, channels=channels, image_size=side)


def _composed(arguments: Overrides, side: int | None = None) -> DataConfig:
    with _of_other_images():
        return load(EvaluateConfig, ["run=any", *arguments], all_read=True).images(side)


@contextmanager
def _of_other_images() -> Iterator[None]:
    """Makes errors name the key of the experiment's command."""
    try:
        yield
    except ConfigError as error:
        why = str(error).replace("data.root", ROOT)
        raise ConfigError(f"the other images that encoders are evaluated on: {why}") from None
