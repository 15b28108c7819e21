"""SwAV: predict from one view to which prototypes another view of the image is assigned.

Caron et al., "Unsupervised Learning of Visual Features by Contrasting Cluster Assignments", NeurIPS
2020 (arXiv 2006.09882).
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from orchestra_flwr.clustering import FeatureMemory
from orchestra_flwr.clustering.memory import EMPTY
from orchestra_flwr.config import Config, ModelConfig, Section
from orchestra_flwr.data import Recipe
from orchestra_flwr.methods import Batch, KnowsChance, Received, Role, StartsRounds, Step
from orchestra_flwr.methods.families import Projecting, Prototypes
from orchestra_flwr.models import build_head

JITTER = (0.8, 0.8, 0.8, 0.2)
WHOLE = Recipe(crop_scale=(0.14, 1.0), jitter=JITTER)
LOCAL = Recipe(crop_scale=(0.05, 0.14), jitter=JITTER)


def equal_assignments(
    cosines: Tensor, present: Tensor, regularisation: float, iterations: int
) -> Tensor:
    """Soft assignments that spread rows equally over prototypes (equations 3 to 5).

    Sinkhorn-Knopp with a fixed number of iterations, so that a step can be a CUDA graph; that of
    `orchestra_flwr.clustering` iterates until columns are equal.

    Args:
        cosines: (n, K) of features and prototypes.
        present: (n,) bool, which rows take part; the others get zeros.
        regularisation: epsilon of the entropy; smaller ones make sharper assignments.
        iterations: of scaling columns, then rows.

    Returns:
        (n, K) whose rows sum to 1, without gradient.
    """
    cosines = cosines.detach()
    plan = ((cosines - cosines.max()) / regularisation).exp() * present[:, None]
    tiny = torch.finfo(plan.dtype).tiny
    for _ in range(iterations):
        plan = plan / plan.sum(dim=0).clamp(min=tiny)
        plan = plan / plan.sum(dim=1, keepdim=True).clamp(min=tiny)
    return plan


def swapped_prediction_loss(
    cosines: Sequence[Tensor], assignments: Sequence[Tensor], temperature: float
) -> Tensor:
    """Cross-entropy between each assignment and the predictions of other views (equation 6).

    Args:
        cosines: for each of V views (B, K) of features and prototypes.
        assignments: for the first of these views (B, K), rows sum to 1.
        temperature: tau of the predictions.

    Returns:
        Scalar mean over images and pairs of views.
    """
    losses = [
        F.cross_entropy(predicted / temperature, assigned)
        for i, assigned in enumerate(assignments)
        for v, predicted in enumerate(cosines)
        if v != i
    ]
    return torch.stack(losses).mean()


class SwAV(StartsRounds, KnowsChance, Projecting):
    """Backbone, a two-layer projector, prototypes, and optionally a queue of projections.

    The two large crops are assigned, all crops predict. For batches smaller than the number of
    prototypes, projections of earlier steps (the queue, of both views) are assigned together with
    the batch, as in the paper for small batches. They are features of single images: the queue
    never leaves a client, and is empty when a round begins.

    Cosines of D values have a deviation of about D^-0.5. The paper's epsilon of .05 is for 128
    values; with 512, assignments become uniform and nothing is learned. Unlike the paper's, local
    crops are resized to the images' size. Prototypes are trained from the first step on.
    """

    class Settings(Section):
        # K; the paper's 3000 are three for each of its classes.
        prototypes: int = Field(30, ge=2, le=2**17)
        temperature: float = Field(0.1, gt=0)
        regularisation: float = Field(0.02, ge=0.02)  # epsilon; below it float32 underflows
        iterations: int = Field(3, ge=1)
        queue: int = Field(0, ge=0)  # earlier projections that are assigned together with a batch
        local_crops: int = Field(0, ge=0, le=16)  # small crops beside the two large ones

    roles: ClassVar = {"prototypes": Role.SHARED, "queue": Role.TRANSIENT}

    settings: Settings

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        dim = config.model.projector_dim
        self.prototypes = Prototypes(self.settings.prototypes, dim)
        self.queue = FeatureMemory(self.settings.queue, dim)

    def build_projector(self, model: ModelConfig) -> nn.Module:
        """Two layers, the hidden one as wide as the backbone's features."""
        dim = self.backbone.dim
        return build_head(model, dim, dim, bias=True, last_norm=False)

    def recipes(self) -> Sequence[Recipe]:
        """Two large crops, then the small ones."""
        return (WHOLE, WHOLE, *(LOCAL for _ in range(self.settings.local_crops)))

    def start_round(self, received: Received) -> None:
        self.queue.clear()

    def chance_losses(self, batch_size: int) -> dict[str, float]:
        """All prototypes are equally likely."""
        return {"clustering": math.log(self.settings.prototypes)}

    def loss(self, batch: Batch) -> Step:
        features, projections = self.embed(batch.views)
        cosines = [self.prototypes(projection) for projection in projections]
        assignments = [self._assigned(large) for large in cosines[:2]]
        if self.settings.queue:
            for projection in projections[:2]:
                self.queue.push(batch.images, projection)
        clustering = swapped_prediction_loss(cosines, assignments, self.settings.temperature)
        return Step({"clustering": clustering}, {"backbone": features, "projector": projections})

    def _assigned(self, cosines: Tensor) -> Tensor:
        """(B, K) assignments of a view of the batch, made together with the queue's."""
        present, together = cosines.new_ones(len(cosines)) > 0, cosines
        if self.settings.queue:
            present = torch.cat([present, self.queue.images != EMPTY])
            together = torch.cat([cosines, self.prototypes(self.queue.features)])
        settings = self.settings
        plan = equal_assignments(together, present, settings.regularisation, settings.iterations)
        return plan[: len(cosines)]
