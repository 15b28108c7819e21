"""Methods that need no labels and can learn from some all the same."""

from torch import nn

from orchestra_flwr.config import Config
from orchestra_flwr.methods import LearnsLabels, sees_labels
from orchestra_flwr.methods.families.projecting import Projecting
from orchestra_flwr.methods.labels import required_classes


class SomeLabels(LearnsLabels, Projecting):
    """With `labels.fraction` a linear classifier is trained beside the method's own loss.

    A subclass builds all else first, so that it begins with the same weights as without labels, and
    then calls :meth:`add_classifier`. Its loss is that of
    :func:`~orchestra_flwr.methods.semi_supervised.losses_with_labels`.
    """

    classifier: nn.Linear | None

    def add_classifier(self, config: Config) -> None:
        """Builds a linear classifier of the run's classes; None where the method sees no labels.

        Raises:
            ConfigError: the number of classes is not known.
        """
        self.classifier = None
        if sees_labels(config):
            self.classifier = nn.Linear(self.backbone.dim, required_classes(config).count)

    def classification_head(self) -> nn.Module | None:
        """The linear classifier, where there are labels."""
        return self.classifier
