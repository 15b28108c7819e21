"""Methods that learn classes: a backbone and a linear classifier, both averaged."""

from torch import nn

from orchestra_flwr.config import Config
from orchestra_flwr.methods import LearnsLabels
from orchestra_flwr.methods.families.one_backbone import OneBackbone
from orchestra_flwr.methods.labels import LabelSettings, required_classes


class Classifying(LearnsLabels, OneBackbone):
    """A backbone, and a linear classifier of its features; there is no projector.

    Raises:
        ConfigError: nothing says how many classes there are.
    """

    needs_labels = True

    settings: LabelSettings

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        self.classifier = nn.Linear(self.backbone.dim, required_classes(config).count)

    def classification_head(self) -> nn.Module:
        """The linear classifier."""
        return self.classifier
