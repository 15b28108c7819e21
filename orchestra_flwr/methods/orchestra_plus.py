"""Orchestra with one pass of the online encoder in place of two; not in the paper."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from orchestra_flwr.data import Recipe
from orchestra_flwr.methods import Batch
from orchestra_flwr.methods.orchestra import RECIPES, Orchestra

TURNED = (Recipe(), Recipe(rotate=True))


class OrchestraPlus(Orchestra):
    """The view that was rotated predicts the target's assignment as well.

    This saves the third view with its passes, a third of a local step. The target never sees a
    rotated view, so predicting its assignment from one is not easier.
    """

    def recipes(self) -> Sequence[Recipe]:
        """Views for target and online encoder."""
        return TURNED if self.settings.rotation else RECIPES[:2]

    def rotation_loss(self, batch: Batch, projection: Tensor) -> dict[str, Tensor]:
        """The cross-entropy of the view that predicts assignments, which was rotated."""
        rotation = batch.rotations[1]
        assert rotation is not None
        return {"rotation": F.cross_entropy(self.rotation_head(projection), rotation)}
