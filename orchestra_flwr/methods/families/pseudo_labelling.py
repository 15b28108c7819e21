"""Methods whose received model labels the images of a client that have no label."""

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from orchestra_flwr.config import Config
from orchestra_flwr.data import SIMCLR
from orchestra_flwr.methods import Received, StartsRounds
from orchestra_flwr.methods.families.classifying import Classifying
from orchestra_flwr.methods.pseudo_labels import class_probabilities
from orchestra_flwr.models import check_statistics


class PseudoLabelling(StartsRounds, Classifying):
    """A classifier whose received weights label the client's images, for the whole round."""

    views: ClassVar = (SIMCLR, SIMCLR)

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        self._normalisation = config.data.normalise
        self._batch_size = config.training.batch_size
        self._pseudo: Tensor | None = None

    @abstractmethod
    def pseudo_labels(self, probabilities: Tensor) -> Tensor:
        """(n,) classes by their (n, K) probabilities, UNLABELLED for images that are not used."""

    @classmethod
    def check(cls, config: Config) -> None:
        """Refuses BatchNorm statistics of no images, where pseudo-labels are read at all.

        Raises:
            ValueError: names the keys, as :func:`check_statistics`.
        """
        super().check(config)
        fraction = config.labels.fraction
        if fraction is not None:
            check_statistics(config, f"method={config.method.name} labels.fraction={fraction:g}")

    def start_round(self, received: Received) -> None:
        """Labels the client's images with the model that the round starts from."""
        probabilities = class_probabilities(
            self.backbone, self.classifier, received.images, self._normalisation, self._batch_size
        )
        self._pseudo = self.pseudo_labels(probabilities)
