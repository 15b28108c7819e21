"""A client's scores of a model: on its own images, or on the classes that it holds."""

from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from orchestra_flwr.config import Config
from orchestra_flwr.evaluation import (
    LabelFreeScores,
    OwnClasses,
    label_free_scores,
    personal_accuracy,
)
from orchestra_flwr.evaluation.linear_probe import penalty_of
from orchestra_flwr.federation.messages.fields import LOCAL_SCORES, PERSONAL
from orchestra_flwr.methods import classification_head_of, ordered_backbones
from orchestra_flwr.models import Backbone, BatchNormPolicy, Encoder
from orchestra_flwr.seeding import ClientSeed, torch_generator
from orchestra_flwr.square_image import resize
from orchestra_flwr.training import Learner


@dataclass(frozen=True)
class Scoring:
    """Scores models for one client; attributes as the arguments of :class:`OrchestraClient`."""

    config: Config
    name: str
    images: Tensor
    own_classes: OwnClasses | None
    personal: Tensor | None

    def scores(self, learner: Learner, round_: int) -> tuple[float, dict[str, Any]]:
        """A loss and the scores of the backbone that is kept.

        With `evaluation.clients` the scores are accuracies on the client's own classes, whose names
        begin with "own/"; with `evaluation.personal_labels` alone, the accuracy of a head of its
        own, unless the client withholds it. `evaluation.unsupervised` adds scores without labels on
        its own images; the loss is then minus :attr:`LabelFreeScores.score`.

        Args:
            round_: the augmentations follow from it.

        Raises:
            ValueError: the own classes are not known.
        """
        evaluation = self.config.evaluation
        backbone, *_ = ordered_backbones(learner.method, evaluation.backbone).values()
        accuracies: dict[str, float] = {}
        if evaluation.clients:
            head = classification_head_of(learner.method, backbone)
            accuracies = self._own_scores(self._with_statistics(backbone, self.images), head)
        elif evaluation.personal_by_clients:
            accuracies = self._personal_score(self._with_statistics(backbone, self.images))
        if not evaluation.unsupervised:
            return 1 - next(iter(accuracies.values()), 0.0), accuracies
        scores = self._label_free(backbone, round_)
        return -scores.score, {**asdict(scores), **accuracies}

    def _with_statistics(self, backbone: Backbone, images: Tensor) -> Backbone:
        """With initial statistics, those of no images, any training would look good."""
        size, by = self.config.evaluation.batch_size, self.config.data.normalise
        return BatchNormPolicy.of(self.config).on_client(backbone, images, size, by)

    def _label_free(self, backbone: Backbone, round_: int) -> LabelFreeScores:
        data, size = self.config.data, self.config.evaluation.batch_size
        images = resize(self.images, min(self.images.shape[-1], data.view_size))
        backbone = self._with_statistics(backbone, images)
        seed = ClientSeed(self.config.seed, round_, self.name)
        draw = seed.generator("similarity", images.device)
        return label_free_scores(backbone, images, data.augmentation, draw, size, by=data.normalise)

    def _own_scores(self, backbone: Backbone, head: nn.Module | None) -> dict[str, float]:
        if self.own_classes is None:
            raise ValueError("evaluation.clients=true: only simulated clients know their classes")
        encoder = Encoder.of(self.config, backbone)
        scores = self.own_classes.scores(encoder, head, self.config.evaluation.batch_size)
        return {LOCAL_SCORES + name: value for name, value in scores.items()}

    def _personal_score(self, backbone: Backbone) -> dict[str, float]:
        """Empty if it must not leave the client, or too few of its images have labels."""
        evaluation = self.config.evaluation
        if self.personal is None or evaluation.personal_labels is None:
            return {}
        accuracy = personal_accuracy(
            Encoder.of(self.config, backbone),
            self.images,
            self.personal,
            count=evaluation.personal_labels,
            generator=torch_generator(self.config.seed, "personal", self.name),
            batch_size=evaluation.batch_size,
            penalty=penalty_of(evaluation.probe),
        )
        return {} if accuracy is None else {PERSONAL: accuracy}
