"""Methods whose loss compares the projections of two views, and nothing else."""

from abc import abstractmethod

from torch import Tensor

from orchestra_flwr.methods import Batch, Step
from orchestra_flwr.methods.families.projecting import Projecting


class JointEmbedding(Projecting):
    """Two views of every image, a projection of each, one comparison."""

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
