"""Distillation: a small network learns the features of a teacher that stays on each client.

The teacher sees images as they are, once; the student sees augmented ones. The loss is that of Fang
et al., "SEED: Self-supervised Distillation for Visual Representation", ICLR 2021 (arXiv
2101.04731), or a cosine.
"""

from typing import ClassVar, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from orchestra_flwr.config import Config, ModelConfig, OptionalPathText, PathText, Section
from orchestra_flwr.data import Recipe
from orchestra_flwr.methods import Batch, ChecksClients, Received, Role, StartsRounds, Step
from orchestra_flwr.methods.families import Projecting
from orchestra_flwr.methods.teacher import targets_of, teacher_of
from orchestra_flwr.models import build_head
from orchestra_flwr.models.backbones.timm import PUBLISHED

# One view, of the student: what the teacher saw is still in it.
VIEW = Recipe(jitter=(0.2, 0.2, 0.2, 0.05), gray_p=0.05, blur_p=0)
MAX_COMPARED = 4096  # of a client's images, with which the similarity loss compares


def cosine_distillation_loss(predictions: Tensor, targets: Tensor) -> Tensor:
    """1 - cosine of the student's and the teacher's features, averaged over images.

    Args:
        predictions: (B, D) of the student.
        targets: (B, D) unit vectors of the teacher.

    Returns:
        Scalar, from 0 to 2.
    """
    return 1 - F.cosine_similarity(predictions, targets, dim=1).mean()


def similarity_distillation_loss(
    predictions: Tensor,
    targets: Tensor,
    compared: Tensor,
    *,
    temperature: float,
    teacher_temperature: float,
) -> Tensor:
    """Cross-entropy of similarities to many images (SEED, equations 3 to 6), averaged over images.

    SEED compares with a queue of the teacher's latest features; here all of the client's images
    have one.

    Args:
        predictions: (B, D) of the student.
        targets: (B, D) unit vectors of the teacher.
        compared: (M, D) unit vectors of the teacher for the images that are compared with.
        temperature: by which the student's cosines are divided.
        teacher_temperature: by which the teacher's are.

    Returns:
        Scalar; at least the entropy of the teacher's similarities.
    """
    wanted = F.softmax(targets @ compared.T / teacher_temperature, dim=1)
    student = F.normalize(predictions, dim=1) @ compared.T / temperature
    return F.cross_entropy(student, wanted)


class Distill(ChecksClients, StartsRounds, Projecting):
    """Backbone and a head that predicts the teacher's features; the teacher is no part of it."""

    class Settings(Section):
        """Options under `method.` for method=distill."""

        teacher: OptionalPathText = None  # None: a real client names its own
        teacher_weights: PathText = PUBLISHED
        teacher_size: int | None = Field(None, ge=8, le=512)
        loss: Literal["similarity", "cosine"] = "similarity"
        temperature: float = Field(0.1, gt=0)
        teacher_temperature: float = Field(0.02, gt=0)
        head: Literal["shared", "local"] = "shared"

    views: ClassVar = (VIEW,)

    settings: Settings

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        self._config = config
        self._targets: Tensor | None = None  # (n, projector_dim), of the round's images

    def build_projector(self, model: ModelConfig) -> nn.Module:
        """Two layers, no norm at the end: the teacher's features are not centred."""
        return build_head(model, self.backbone.dim, model.projector_dim, bias=True, last_norm=False)

    @classmethod
    def check_client(cls, config: Config, client: str) -> None:
        """Refuses a client whose teacher cannot be read."""
        teacher_of(config, client)

    @classmethod
    def unread(cls, config: Config) -> dict[str, str]:
        """Temperatures are those of the similarities."""
        unread = super().unread(config)
        if config.method.settings.loss == "cosine":
            names = ("method.temperature", "method.teacher_temperature")
            unread |= dict.fromkeys(names, "with method.loss=cosine")
        return unread

    def role(self, name: str) -> Role:
        """Both are averaged, but `method.head=local` leaves each client its own head."""
        role = super().role(name)
        is_own = self.settings.head == "local" and name.startswith("projector.")
        return Role.LOCAL if is_own else role

    def start_round(self, received: Received) -> None:
        """Asks the teacher, unless it has seen these images."""
        self._targets = targets_of(self._config, received.client, received.images)

    def loss(self, batch: Batch) -> Step:
        """What the student makes of a view, against what the teacher made of the whole image."""
        assert self._targets is not None
        features, predictions = self.embed(batch.views)
        settings, targets = self.settings, self._targets[batch.images]
        if settings.loss == "cosine":
            loss = cosine_distillation_loss(predictions[0], targets)
        else:
            loss = similarity_distillation_loss(
                predictions[0],
                targets,
                self._targets[:MAX_COMPARED],
                temperature=settings.temperature,
                teacher_temperature=settings.teacher_temperature,
            )
        return Step({settings.loss: loss}, {"backbone": features, "projector": predictions})
