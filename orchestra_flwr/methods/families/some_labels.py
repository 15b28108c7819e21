"""Methods that need no labels and can learn from some all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor, nn

from orchestra_flwr.config import Config
from orchestra_flwr.methods import LearnsLabels, Role
from orchestra_flwr.methods.families.projecting import Features, Projecting
from orchestra_flwr.methods.semi_supervised import Group, build_classifier, losses_with_labels


class SomeLabels(LearnsLabels, Projecting):
    """With `labels.fraction` a linear classifier is trained beside the method's own loss.

    A subclass builds all else and then calls :meth:`add_classifier`.
    """

    roles: ClassVar = {"classifier": Role.SHARED}

    def add_classifier(self, config: Config) -> None:
        """Builds the classifier, where there are labels."""
        self.classifier = build_classifier(config, self.backbone.dim)

    def losses(
        self, name: str, loss: Callable[[Group], Tensor], features: Features, labels: Tensor | None
    ) -> dict[str, Tensor]:
        """The method's own loss, and what labels add to it: :func:`losses_with_labels`."""
        return losses_with_labels(name, loss, self.classifier, features, labels)

    def classification_head(self) -> nn.Module | None:
        """The linear classifier, where there are labels."""
        return self.classifier
