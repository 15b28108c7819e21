"""Other images that an experiment judges its encoders by (transfer)."""

from __future__ import annotations

import json

from orchestra_flwr.config import EvaluateConfig, load
from orchestra_flwr.experiments.planning.description import Overrides
from orchestra_flwr.fingerprints import fingerprint_of

PROTOCOLS = "protocols=[linear,linear_10,linear_1]"  # one for each measure of transfer


def transfer_name(arguments: Overrides) -> str | None:
    """The name of the evaluation by some other images, no other images having the same.

    Args:
        arguments: of the evaluation's command, which name the images; none: there are none.

    Raises:
        ConfigError: they do not compose.
    """
    if not arguments:
        return None
    images = load(EvaluateConfig, ["run=any", *arguments], all_read=True).images()
    digest = fingerprint_of(json.dumps([*arguments, images.label, PROTOCOLS]), digits=10)
    return f"transfer-{images.name}-{digest}"
