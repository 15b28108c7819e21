"""What clients learn: one file a method. Methods are found by the names of their files."""

from torch import nn

from orchestra_flwr.config import Config, ConfigError
from orchestra_flwr.methods.abilities import (
    BoundsInformation,
    ChecksClients,
    ClipsGradients,
    KeepsState,
    KnowsChance,
    Received,
    StartsRounds,
)
from orchestra_flwr.methods.base import Method
from orchestra_flwr.methods.batch import Batch, Step
from orchestra_flwr.methods.contributing import Contributes, release_of, weight_of
from orchestra_flwr.methods.labels import LearnsLabels, classes_of, labels_for, sees_labels
from orchestra_flwr.methods.roles import Role, role_of
from orchestra_flwr.models import Backbone
from orchestra_flwr.seeding import derive, seeded

__all__ = [
    "Batch",
    "BoundsInformation",
    "ChecksClients",
    "ClipsGradients",
    "Contributes",
    "KeepsState",
    "KnowsChance",
    "LearnsLabels",
    "Method",
    "Received",
    "Role",
    "StartsRounds",
    "Step",
    "build_method",
    "check_client",
    "classes_of",
    "classification_head_of",
    "labels_for",
    "ordered_backbones",
    "release_of",
    "role_of",
    "sees_labels",
    "weight_of",
]


def build_method(config: Config, channels: int) -> Method:
    """The method named by the configuration, freshly initialised from the run's seed.

    Raises:
        ConfigError: the method cannot be built for these images.
    """
    with seeded(derive(config.seed, "init")):
        method: Method = config.method.plugin(config, channels)
    ordered_backbones(method, config.evaluation.backbone)
    return method


def check_client(config: Config, client: str) -> None:
    """Refuses a client that lacks what the method needs of it (:class:`ChecksClients`).

    Raises:
        ConfigError: what is missing, in one line.
    """
    if issubclass(config.method.plugin, ChecksClients):
        config.method.plugin.check_client(config, client)


def classification_head_of(method: Method, backbone: Backbone) -> nn.Module | None:
    """What classifies the features of one of a method's backbones; None: nothing does."""
    first = next(iter(method.backbones().values()))
    if not isinstance(method, LearnsLabels) or backbone is not first:
        return None
    return method.classification_head()


def ordered_backbones(method: Method, first: str | None) -> dict[str, Backbone]:
    """A method's backbones, the one of this name (None: the method's own first) in front.

    Raises:
        ConfigError: the method has no backbone of that name.
    """
    backbones = method.backbones()
    if first is None:
        return backbones
    if first not in backbones:
        raise ConfigError(
            f"evaluation.backbone={first}: must be null or one of {', '.join(backbones)}"
        )
    return {first: backbones[first], **backbones}
