"""RotPred with the rotation of another image of the batch as the answer, which no image shows."""

import torch.nn.functional as F

from orchestra_flwr.methods import Step
from orchestra_flwr.methods.rotpred import RotPred


class RotationsOfOthers(RotPred):
    """What training brings when there is nothing to learn."""

    def loss(self, batch):
        """Cross-entropy with the rotations of the images, each passed on to the next."""
        (turns,) = batch.rotations
        features, projections = self.embed(batch.views)
        rotation = F.cross_entropy(self.rotation_head(projections[0]), turns.roll(1))
        return Step({"rotation": rotation}, {"backbone": features, "projector": projections})
