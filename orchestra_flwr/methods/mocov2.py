"""MoCo v2: tell the other view of an image from many earlier images, kept in a queue.

He et al., "Momentum Contrast for Unsupervised Visual Representation Learning", CVPR 2020 (arXiv
1911.05722); Chen et al., "Improved Baselines with Momentum Contrastive Learning", arXiv 2003.04297.
"""

import math
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
from orchestra_flwr.methods.families import MomentumEncoder
from orchestra_flwr.models import build_head

# SimCLR's with smaller crops.
VIEW = Recipe(crop_scale=(0.2, 1.0), jitter=(0.4, 0.4, 0.4, 0.1))


def queue_contrastive_loss(
    queries: Tensor, keys: Tensor, queue: Tensor, negative: Tensor, temperature: float
) -> Tensor:
    """InfoNCE of each query with its key and the queue's rows (MoCo, equation 1).

    Args:
        queries: (B, D) features of one view of every image, unit vectors.
        keys: (B, D) target features of another view of the same images, unit vectors.
        queue: (K, D) target features of other images, unit vectors.
        negative: (B, K) bool, which rows of the queue are negatives of each query.
        temperature: tau, by which cosine similarities are divided.

    Returns:
        Scalar mean over the batch; 0 without any negative.
    """
    positive = (queries * keys).sum(dim=1, keepdim=True)
    others = (queries @ queue.T).masked_fill(~negative, -torch.inf)
    logits = torch.cat([positive, others], dim=1) / temperature
    return F.cross_entropy(logits, logits.new_zeros(len(logits), dtype=torch.int64))


class MoCoV2(StartsRounds, KnowsChance, MomentumEncoder):
    """Query encoder, key encoder (the target that follows it), and a queue of keys.

    The queue is empty when a round begins and never leaves the client: its rows are features of
    single images, and rows of earlier rounds would come from a key encoder since averaged. The
    queue of a client with few images holds some of them several times: rows of the query's own
    image are no negatives. The batch's keys enter the queue before the loss is computed, so the
    first steps of a round have negatives, and some negatives share the positive's batch statistics,
    which would otherwise give it away (the paper's shuffled BatchNorm needs several GPUs).
    """

    class Settings(Section):
        ema: float = Field(0.999, ge=0, lt=1)  # of the key encoder, a step
        temperature: float = Field(0.2, gt=0)
        queue: int = Field(4096, ge=1)  # keys; the paper's 65536 are a twentieth of its images

    roles: ClassVar = {"queue": Role.TRANSIENT}
    views: ClassVar = (VIEW, VIEW)

    settings: Settings

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        self.add_target()
        self.queue = FeatureMemory(self.settings.queue, config.model.projector_dim)

    def build_projector(self, model: ModelConfig) -> nn.Module:
        """Two layers, the hidden one as wide as the backbone's features.

        The paper's has no norm; `model.projector=plain` is that one.
        """
        dim = self.backbone.dim
        return build_head(model, dim, dim, bias=True, last_norm=False)

    def start_round(self, received: Received) -> None:
        self.queue.clear()

    def chance_losses(self, batch_size: int) -> dict[str, float]:
        """The second view and all keys of a full queue are equally likely."""
        return {"contrastive": math.log(1 + self.settings.queue)}

    def loss(self, batch: Batch) -> Step:
        """The first view's query against the second view's key and the queue (Algorithm 1)."""
        first, second = batch.views
        features, projections = self.embed((first,))
        self.update_target(self.settings.ema)
        (key,) = self.target_projections((second,))
        keys = F.normalize(key, dim=1)
        self.queue.push(batch.images, keys)
        numbers = self.queue.images
        negative = (numbers != EMPTY) & (numbers != batch.images[:, None])
        contrastive = queue_contrastive_loss(
            F.normalize(projections[0], dim=1),
            keys,
            self.queue.features,
            negative,
            self.settings.temperature,
        )
        return Step({"contrastive": contrastive}, {"backbone": features, "projector": projections})
