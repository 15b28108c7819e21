"""Methods with one backbone that clients train and the server averages, mostly with a projector."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor, nn

from orchestra_flwr.config import Config, ModelConfig
from orchestra_flwr.data import SIMCLR, Recipe
from orchestra_flwr.methods import Batch, Method, Role, Step, role_of
from orchestra_flwr.models import Backbone, build_backbone, build_head

AVERAGED = dict.fromkeys(("backbone", "projector", "classifier"), Role.SHARED)
PROJECTOR_KEYS = ("model.projector", "model.projector_hidden", "model.projector_dim")
BYOL_VIEWS = (Recipe(blur_p=1.0), Recipe(blur_p=0.1, solarize_p=0.2))  # the two views of that paper

Features = tuple[Tensor, ...]  # (B, dim) of each view


class OneBackbone(Method):
    """A backbone, and what a subclass builds on it: a projector, a classifier, modules of its own.

    Class attributes:
        roles: of a subclass's other modules and buffers, by name; there is no default.
        views: the augmentation of each view of a batch.
        has_projector: whether the keys `model.projector*` are read.
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
        """Backbone, projector and classifier are averaged; a subclass adds the rest in `roles`."""
        return role_of(name, {**AVERAGED, **self.roles})

    def recipes(self) -> Sequence[Recipe]:
        """The views."""
        return self.views

    def backbones(self) -> dict[str, Backbone]:
        """The one backbone."""
        return {"online": self.backbone}


class Projecting(OneBackbone):
    """A backbone and a projector, which is only used in training."""

    views: ClassVar[Sequence[Recipe]] = (SIMCLR, SIMCLR)
    has_projector = True

    projector: nn.Module

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        self.projector = self.build_projector(config.model)

    def build_projector(self, model: ModelConfig) -> nn.Module:
        """(B, backbone.dim) to (B, `model.projector_dim`): two layers, the second with biases."""
        return build_head(model, self.backbone.dim, model.projector_dim, bias=True)

    def embed(self, views: Sequence[Tensor]) -> tuple[Features, Features]:
        """The backbone's features and the projections of each view, one view after the other."""
        seen = [(feature := self.backbone(view), self.projector(feature)) for view in views]
        features, projections = zip(*seen, strict=True)
        return features, projections


class JointEmbedding(Projecting):
    """Two views of every image, a projection of each, one comparison: Barlow Twins and VICReg."""

    views: ClassVar = BYOL_VIEWS

    def build_projector(self, model: ModelConfig) -> nn.Module:
        """Three layers of equal width; the papers' have 8192 features (`model.projector_dim`)."""
        dim = model.projector_dim
        return build_head(model, self.backbone.dim, dim, dim, last_norm=False)

    @abstractmethod
    def compare(self, first: Tensor, second: Tensor) -> dict[str, Tensor]:
        """Named scalar parts of the loss.

        Args:
            first: (B, D) projections of one view of every image.
            second: (B, D) projections of another view of the same images.
        """

    def loss(self, batch: Batch) -> Step:
        """The comparison of one step."""
        features, projections = self.embed(batch.views)
        losses = self.compare(*projections)
        return Step(losses, {"backbone": features, "projector": projections})
