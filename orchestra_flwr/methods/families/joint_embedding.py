"""Methods whose loss compares the projections of two views, as Barlow Twins and VICReg."""

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor, nn

from orchestra_flwr.config import ModelConfig
from orchestra_flwr.data import Recipe
from orchestra_flwr.methods import Batch, Step
from orchestra_flwr.methods.families.projecting import Projecting
from orchestra_flwr.models import build_head

BYOL_VIEWS = (Recipe(blur_p=1.0), Recipe(blur_p=0.1, solarize_p=0.2))  # the two views of that paper


class JointEmbedding(Projecting):
    """Two views of every image, a projection of each, one comparison."""

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
