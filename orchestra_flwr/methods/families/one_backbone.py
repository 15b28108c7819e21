"""Methods with one backbone, which clients train and the server averages."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from orchestra_flwr.config import Config
from orchestra_flwr.data import Recipe
from orchestra_flwr.methods import Method, Role, role_of
from orchestra_flwr.models import Backbone, build_backbone

AVERAGED = dict.fromkeys(("backbone", "projector", "classifier"), Role.SHARED)
PROJECTOR_KEYS = ("model.projector", "model.projector_hidden", "model.projector_dim")


class OneBackbone(Method):
    """A backbone, and what a subclass builds on it: a projector, a classifier, modules of its own.

    Class attributes:
        roles: of a subclass's other modules and buffers, by name; without an entry there is none.
        views: the augmentation of each view of a batch.
        has_projector: whether the keys of projectors are read.
    """

    roles: ClassVar[Mapping[str, Role]] = {}
    views: ClassVar[Sequence[Recipe]]
    has_projector: ClassVar[bool] = False

    backbone: Backbone

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        self.backbone = build_backbone(config.model, channels)

    @classmethod
    def unread(cls, config: Config) -> dict[str, str]:
        """Without a projector its keys are not read."""
        keys = () if cls.has_projector else PROJECTOR_KEYS
        return super().unread(config) | dict.fromkeys(keys, f"by method={config.method.name}")

    def role(self, name: str) -> Role:
        """Backbone, projector and classifier are averaged; a subclass says the rest in `roles`."""
        return role_of(name, {**AVERAGED, **self.roles})

    def recipes(self) -> Sequence[Recipe]:
        """The views."""
        return self.views

    def backbones(self) -> dict[str, Backbone]:
        """The one backbone."""
        return {"online": self.backbone}
