"""RotPred: tell by how many quarter turns an image was rotated.

Gidaris et al., "Unsupervised Representation Learning by Predicting Image Rotations", ICLR 2018.
"""

import math
from typing import ClassVar

import torch.nn.functional as F
from torch import nn

from orchestra_flwr.config import Config
from orchestra_flwr.data import Recipe
from orchestra_flwr.methods import Batch, KnowsChance, Role, Step
from orchestra_flwr.methods.families import Projecting

# The image as it is, turned.
TURNED = Recipe(crop_scale=None, flip=0, jitter_p=0, gray_p=0, blur_p=0, rotate=True)


class RotPred(KnowsChance, Projecting):
    """Backbone, a two-layer projector and a linear head for the four rotations."""

    roles: ClassVar = {"rotation_head": Role.SHARED}
    views: ClassVar = (TURNED,)

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        self.rotation_head = nn.Linear(config.model.projector_dim, 4)

    def chance_losses(self, batch_size: int) -> dict[str, float]:
        """Four rotations are equally likely."""
        return {"rotation": math.log(4)}

    def loss(self, batch: Batch) -> Step:
        (turns,) = batch.rotations
        assert turns is not None
        features, projections = self.embed(batch.views)
        rotation = F.cross_entropy(self.rotation_head(projections[0]), turns)
        return Step({"rotation": rotation}, {"backbone": features, "projector": projections})
