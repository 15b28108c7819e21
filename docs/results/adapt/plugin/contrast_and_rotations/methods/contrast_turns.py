"""SimCLR's loss of two views, and Orchestra's rotation loss of a third."""

import math
from typing import ClassVar

import torch.nn.functional as F
from pydantic import Field
from torch import nn

from orchestra_flwr.config import Section
from orchestra_flwr.data import SIMCLR, Recipe
from orchestra_flwr.methods import KnowsChance, Role, Step
from orchestra_flwr.methods.families import Projecting
from orchestra_flwr.methods.simclr import nt_xent_loss


class ContrastTurns(KnowsChance, Projecting):
    """A backbone, a projector and a linear head that tells four rotations apart."""

    class Settings(Section):
        """Options under `method.`."""

        temperature: float = Field(0.1, gt=0)
        contrast: float = Field(1.0, ge=0)  # weight of SimCLR's loss; 0: rotations alone

    roles: ClassVar = {"rotation_head": Role.SHARED}
    views: ClassVar = (SIMCLR, SIMCLR, Recipe(rotate=True))

    def __init__(self, config, channels):
        super().__init__(config, channels)
        self.rotation_head = nn.Linear(config.model.projector_dim, 4)

    def recipes(self):
        """The views; the rotated one is the last."""
        return self.views if self.settings.contrast else self.views[2:]

    def chance_losses(self, batch_size):
        """Four rotations are equally likely."""
        return {"rotation": math.log(4)}

    def loss(self, batch):
        """Both losses of one step."""
        features, projections = self.embed(batch.views)
        turns = self.rotation_head(projections[-1])
        losses = {"rotation": F.cross_entropy(turns, batch.rotations[-1])}
        if self.settings.contrast:
            contrast = nt_xent_loss(projections[0], projections[1], self.settings.temperature)
            losses["contrastive"] = self.settings.contrast * contrast
        return Step(losses, {"backbone": features[:1], "projector": projections[:1]})
