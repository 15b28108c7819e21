"""Distillation: a small network learns the features of a teacher that stays on each client.

The teacher sees images as they are, once; the student sees augmented ones. The loss is that of Fang
et al., "SEED: Self-supervised Distillation for Visual Representation", ICLR 2021 (arXiv
2101.04731), or a cosine.
"""

import math
from typing import ClassVar, Literal

import torch
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
from orchestra_flwr.seeding import drawn

# The student's one view, mild enough to keep what the teacher saw.
VIEW = Recipe(jitter=(0.2, 0.2, 0.2, 0.05), gray_p=0.05, blur_p=0)
MAX_COMPARED = 4096  # images of a client with which the similarity loss compares each image
SHARPEST, SOFTEST, HALVINGS = 1e-5, 10.0, 20  # of the search for a teacher's temperatures
ROWS = 256  # images whose temperatures are searched for at once


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
    teacher_temperature: float | Tensor,
) -> Tensor:
    """Cross-entropy of similarities to many images (SEED, equations 3 to 6), averaged over images.

    SEED compares with a queue of the teacher's latest features; here the teacher has seen all of
    the client's images beforehand.

    Args:
        predictions: (B, D) of the student.
        targets: (B, D) unit vectors of the teacher.
        compared: (M, D) unit vectors of the teacher for the images to compare with.
        temperature: divides the student's cosines.
        teacher_temperature: divides the teacher's cosines; one number, or (B, 1).

    Returns:
        Scalar; at least the entropy of the teacher's similarities.
    """
    wanted = F.softmax(targets @ compared.T / teacher_temperature, dim=1)
    student = F.normalize(predictions, dim=1) @ compared.T / temperature
    return F.cross_entropy(student, wanted)


def matched_temperatures(cosines: Tensor, perplexity: float) -> Tensor:
    """The temperature of each row that gives its softmax a perplexity (SNE, NeurIPS 2002).

    How far cosines spread depends on the teacher: with one temperature for all, one teacher's
    softmax would single out the image itself, and another's would be almost uniform.

    Args:
        cosines: (B, M).
        perplexity: exp of the entropy in nats, at most half of M.

    Returns:
        (B, 1).
    """
    aim = math.log(min(perplexity, max(1.0, cosines.shape[1] / 2)))
    low = torch.full_like(cosines[:, :1], SHARPEST)
    high = torch.full_like(low, SOFTEST)
    for _ in range(HALVINGS):
        middle = (low * high).sqrt()
        shares = F.log_softmax(cosines / middle, dim=1)
        entropy = -(shares.exp() * shares).sum(dim=1, keepdim=True)
        low, high = low.where(entropy >= aim, middle), high.where(entropy < aim, middle)
    return (low * high).sqrt()


class Distill(ChecksClients, StartsRounds, Projecting):
    """Backbone and a head that predicts the teacher's features; the teacher is no module of it."""

    class Settings(Section):
        teacher: OptionalPathText = None  # None: a real client names its own
        teacher_weights: PathText = PUBLISHED
        teacher_size: int | None = Field(None, ge=8, le=512)
        loss: Literal["similarity", "cosine"] = "similarity"
        temperature: float = Field(0.1, gt=0)
        perplexity: float = Field(16, ge=1)
        teacher_temperature: float | None = Field(None, gt=0)  # None: by the perplexity
        head: Literal["shared", "local"] = "shared"

    views: ClassVar = (VIEW,)

    settings: Settings

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        self._config = config
        self._targets: Tensor | None = None  # (n, projector_dim), of the round's images
        self._compared: Tensor | None = None  # (M, projector_dim), those that all compare with
        self._temperatures: Tensor | None = None  # (n, 1), of the teacher's similarities

    def build_projector(self, model: ModelConfig) -> nn.Module:
        """Two layers, no norm at the end: the teacher's features are not centred."""
        return build_head(model, self.backbone.dim, model.projector_dim, bias=True, last_norm=False)

    @classmethod
    def check_client(cls, config: Config, client: str) -> None:
        """Refuses a client whose teacher cannot be read."""
        teacher_of(config, client)

    @classmethod
    def unread(cls, config: Config) -> dict[str, str]:
        """Temperatures and perplexity are only read by the similarity loss."""
        unread = super().unread(config)
        if config.method.settings.loss == "cosine":
            names = ("temperature", "teacher_temperature", "perplexity")
            unread |= dict.fromkeys((f"method.{name}" for name in names), "with method.loss=cosine")
        elif config.method.settings.teacher_temperature is not None:
            unread["method.perplexity"] = "with method.teacher_temperature"
        return unread

    def role(self, name: str) -> Role:
        """All is averaged, except that `method.head=local` leaves each client its own head."""
        role = super().role(name)
        is_own = self.settings.head == "local" and name.startswith("projector.")
        return Role.LOCAL if is_own else role

    def start_round(self, received: Received) -> None:
        """Computes the teacher's features of these images, unless they are cached."""
        targets = targets_of(self._config, received.client, received.images)
        self._targets = targets
        if self.settings.loss == "similarity":
            # The first images would all be of a folder's first classes.
            rows = drawn(len(targets), MAX_COMPARED, self._config.seed, "compared")
            self._compared = targets[torch.from_numpy(rows).to(targets.device)]
            self._temperatures = self._matched(targets, self._compared)

    def _matched(self, targets: Tensor, compared: Tensor) -> Tensor:
        """(n, 1) temperatures of the teacher's similarities, one for each image."""
        if (temperature := self.settings.teacher_temperature) is not None:
            return targets.new_full((len(targets), 1), temperature)
        parts = [
            matched_temperatures(rows @ compared.T, self.settings.perplexity)
            for rows in torch.split(targets, ROWS)
        ]
        return torch.cat(parts)

    def loss(self, batch: Batch) -> Step:
        """Compares the student's features of a view with the teacher's of the whole image."""
        assert self._targets is not None
        features, predictions = self.embed(batch.views)
        targets = self._targets[batch.images]
        if self._compared is None or self._temperatures is None:
            loss = cosine_distillation_loss(predictions[0], targets)
        else:
            loss = similarity_distillation_loss(
                predictions[0],
                targets,
                self._compared,
                temperature=self.settings.temperature,
                teacher_temperature=self._temperatures[batch.images],
            )
        return Step({self.settings.loss: loss}, {"backbone": features, "projector": predictions})
