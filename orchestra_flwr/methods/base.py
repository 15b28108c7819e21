"""Methods: modules, a role for every tensor, views of images, and a loss.

A new method is one file in this folder, or in the folder `methods/` of a user's package, that
defines a subclass of :class:`Method`. What only some methods do has a mixin each, in
:mod:`orchestra_flwr.methods.abilities`, `contributing` and `labels`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import nn

from orchestra_flwr.config import Config, Plugin, Section
from orchestra_flwr.data import Recipe
from orchestra_flwr.methods.abilities import (
    BoundsInformation,
    ChecksClients,
    KeepsState,
    KnowsChance,
    StartsRounds,
)
from orchestra_flwr.methods.batch import Batch, Step
from orchestra_flwr.methods.contributing import (
    Contributes,
    check_release,
    unread_without_release,
)
from orchestra_flwr.methods.labels import LearnsLabels, check_labels
from orchestra_flwr.methods.roles import Role
from orchestra_flwr.models import Backbone

ABILITIES = (
    BoundsInformation,
    ChecksClients,
    Contributes,
    KeepsState,
    KnowsChance,
    LearnsLabels,
    StartsRounds,
)


class Method(Plugin, nn.Module, ABC):
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
        """Refuses a method of a mixin without that mixin: it would never be called."""
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
        """The augmentation of each view of a batch, where `method.views` asks for no other."""

    @abstractmethod
    def loss(self, batch: Batch) -> Step:
        """The loss of one step, and features that terms may use."""

    @abstractmethod
    def backbones(self) -> dict[str, Backbone]:
        """The backbones to evaluate, by name; the first one is saved."""

    @classmethod
    def check(cls, config: Config) -> None:
        """Refuses labels and privacy that the method does not support; subclasses call it."""
        check_labels(config)
        check_release(config)

    @classmethod
    def unread(cls, config: Config) -> dict[str, str]:
        """Keys of privacy that are not read without a private release."""
        return unread_without_release(config)
