"""Supervised federated averaging: what labels would give.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017.
"""

import math
from typing import ClassVar

import torch.nn.functional as F

from orchestra_flwr.config import Config
from orchestra_flwr.data import UNLABELLED, Recipe
from orchestra_flwr.methods import Batch, KnowsChance, Step
from orchestra_flwr.methods.families import Classifying
from orchestra_flwr.methods.semi_supervised import label_loss


class Supervised(KnowsChance, Classifying):
    """Backbone and a linear classifier. With `labels.fraction` unlabelled images teach nothing."""

    views: ClassVar = (Recipe(jitter_p=0, gray_p=0, blur_p=0),)  # crop and flip

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        self._some_labels = config.labels.fraction is not None

    def chance_losses(self, batch_size: int) -> dict[str, float]:
        """All classes are equally likely."""
        return {"classification": math.log(self.classifier.out_features)}

    def loss(self, batch: Batch) -> Step:
        assert batch.labels is not None
        feature = self.backbone(batch.views[0])
        if self._some_labels:
            labelled = batch.labels != UNLABELLED
            classification = label_loss(self.classifier, (feature,), batch.labels, labelled)
        else:
            classification = F.cross_entropy(self.classifier(feature), batch.labels)
        return Step({"classification": classification}, {"backbone": (feature,)})
