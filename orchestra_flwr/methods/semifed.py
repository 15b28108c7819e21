"""SemiFed: cross-entropy, also of labels that the server's model gives to unlabelled images.

Lin et al., "SemiFed: Semi-supervised Federated Learning with Consistency and Pseudo-Labeling",
2021 (arXiv 2108.09412), as in "A Mutual Information Perspective on Federated Contrastive Learning"
(arXiv 2405.02081): the received model labels images without augmentation, and both augmented views
are trained to predict that label. Models of other clients are not used.
"""

from pydantic import Field
from torch import Tensor

from orchestra_flwr.data import UNLABELLED
from orchestra_flwr.methods import Batch, Step
from orchestra_flwr.methods.families import PseudoLabelling
from orchestra_flwr.methods.families.classifying import confident_classes, with_pseudo_labels
from orchestra_flwr.methods.labels import LabelSettings
from orchestra_flwr.methods.semi_supervised import label_loss


class SemiFed(PseudoLabelling):
    """Backbone and a linear classifier."""

    class Settings(LabelSettings):
        threshold: float = Field(0.95, ge=0, lt=1)  # of the probability of a pseudo-label

    settings: Settings

    def pseudo_labels(self, probabilities: Tensor) -> Tensor:
        return confident_classes(probabilities, self.settings.threshold)

    def loss(self, batch: Batch) -> Step:
        """Cross-entropies of labels and of pseudo-labels, each a sum over the views."""
        assert batch.labels is not None
        views = tuple(self.backbone(view) for view in batch.views)
        labelled = batch.labels != UNLABELLED
        targets = with_pseudo_labels(batch.labels, self._pseudo, batch.images)
        guessed = (targets != UNLABELLED) & ~labelled
        losses = {
            "classification": label_loss(self.classifier, views, targets, labelled),
            "pseudo_labels": label_loss(self.classifier, views, targets, guessed),
        }
        return Step(losses, {"backbone": views})
