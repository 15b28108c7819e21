"""What clients learn: one file a method, found by its name.

A method consists of modules, a role for every tensor, views of images, and a loss. It is a subclass
of :class:`Method` in a file of this folder, or of the folder `methods/` of a user's package. Each
ability that only some methods have is a mixin, in :mod:`orchestra_flwr.methods.abilities`,
`contributing` and `labels`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import nn

from orchestra_flwr.config import Config, ConfigError, Plugin, Section
from orchestra_flwr.data import Recipe
from orchestra_flwr.methods.abilities import (
    BoundsInformation,
    ChecksClients,
    ClipsGradients,
    KeepsState,
    KnowsChance,
    Received,
    StartsRounds,
)
from orchestra_flwr.methods.batch import Batch, Step
from orchestra_flwr.methods.contributing import (
    Contributes,
    check_release,
    release_of,
    unread_without_release,
    weight_of,
)
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


ABILITIES = (
    BoundsInformation,
    ChecksClients,
    Contributes,
    KeepsState,
    KnowsChance,
    LearnsLabels,
    StartsRounds,
)


class Method(nn.Module, Plugin, ABC):
    """A self-supervised (or supervised) method that clients train together.

    The trained backbone is its child `backbone`. Where it has a projector or a predictor, these
    children have these names.

    Class attributes:
        Settings: the method's own options under `method.` in the configuration.

    Attributes:
        settings: the options, checked.
    """

    settings: Section

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuses a mixin's method in a class without that mixin: it would never be called."""
        super().__init_subclass__(**options)
        for ability in ABILITIES:
            for name in ability.__abstractmethods__:
                if name in vars(cls) and not issubclass(cls, ability):
                    raise TypeError(f"{cls.__name__}.{name} needs the base {ability.__name__}")

    @abstractmethod
    def __init__(self, config: Config, channels: int) -> None:
        super().__init__()
        self.settings = config.method.settings

    @abstractmethod
    def role(self, name: str) -> Role:
        """The role of a tensor of the state by its full name; see :func:`roles.role_of`.

        Raises:
            ValueError: the name is not known.
        """

    @abstractmethod
    def recipes(self) -> Sequence[Recipe]:
        """The augmentation of each view of a batch, unless `method.views` asks for another."""

    @abstractmethod
    def loss(self, batch: Batch) -> Step:
        """The loss of one step, and features that terms may use."""

    @abstractmethod
    def backbones(self) -> dict[str, Backbone]:
        """The backbones to evaluate, by name; the first one is saved."""

    @classmethod
    def check(cls, config: Config) -> None:
        """Refuses labels and privacy that the method does not support; subclasses call it."""
        fraction = config.labels.fraction
        if fraction is not None and not issubclass(cls, LearnsLabels):
            raise ValueError(
                f"labels.fraction={fraction:g}: must be null with method={config.method.name}, "
                "which cannot learn from partly labelled images"
            )
        check_release(config)

    @classmethod
    def unread(cls, config: Config) -> dict[str, str]:
        """Keys of privacy that are not read without a private release."""
        return unread_without_release(config)


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
    """The module that classifies features of one of a method's backbones; None: there is none."""
    first = next(iter(method.backbones().values()))
    if not isinstance(method, LearnsLabels) or backbone is not first:
        return None
    return method.classification_head()


def ordered_backbones(method: Method, first: str | None) -> dict[str, Backbone]:
    """A method's backbones, beginning with the one named `first` (None: in the method's own order).

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
