"""BYOL: predict the features that a slow copy of the encoder has for another view.

Grill et al., "Bootstrap Your Own Latent", NeurIPS 2020.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from orchestra_flwr.config import Config, Section
from orchestra_flwr.data import Recipe
from orchestra_flwr.methods.base import Batch, Method, Role
from orchestra_flwr.methods.ema import ema_update
from orchestra_flwr.methods.simsiam import symmetric_negative_cosine
from orchestra_flwr.models import Backbone, build_backbone, mlp

RECIPES = (Recipe(blur_p=1.0), Recipe(blur_p=0.1, solarize_p=0.2))


class BYOLSettings(Section):
    """Options under `method.` for method=byol."""

    ema: float = Field(0.996, ge=0, lt=1)


class BYOL(Method):
    """Online encoder with a predictor, and a target encoder that follows it.

    The target is an average over the steps of all rounds. A client without memory cannot keep it:
    like Orchestra's it then travels with the online encoder and is averaged by the server. Clients
    that keep state of their own (`federation.merge`) keep their targets, which then do not travel.
    """

    Settings = BYOLSettings
    roles: ClassVar[Mapping[str, Role]] = {
        "backbone": Role.SHARED,
        "projector": Role.SHARED,
        "predictor": Role.SHARED,
        "target_backbone": Role.SHARED,
        "target_projector": Role.SHARED,
    }

    settings: BYOLSettings

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        self.keeps_target = config.federation.merge != "replace"
        dim = config.model.projector_dim
        self.backbone = build_backbone(config.model, channels)
        self.projector = mlp(self.backbone.dim, 2 * dim, dim, norm=False)
        self.predictor = mlp(dim, 2 * dim, dim, bias=True, norm=False)
        self.target_backbone = copy.deepcopy(self.backbone).requires_grad_(False)
        self.target_projector = copy.deepcopy(self.projector).requires_grad_(False)

    def role(self, name: str) -> Role:
        """The target is the client's own where clients keep state."""
        own = self.keeps_target and name.startswith("target_")
        return Role.LOCAL if own else super().role(name)

    def start_own_state(self) -> None:
        """A client's target starts as the online encoder that it received, and follows at once."""
        self.target_backbone.load_state_dict(self.backbone.state_dict())
        self.target_projector.load_state_dict(self.projector.state_dict())

    def recipes(self) -> Sequence[Recipe]:
        """BYOL's two different augmentations, one always blurred, one seldom, but solarized."""
        return RECIPES

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Each view predicts the target's features of the other one.

        The target follows the online encoder once a step, before it is used: what BYOL does after
        the optimizer's step is here done at the start of the next one. The steps of a round are
        then the same but for the ends: the first one takes in what the server sent, and the last
        one's result is taken in by the next round.
        """
        predictions = [self.predictor(self.projector(self.backbone(view))) for view in batch.views]
        ema_update(self.target_backbone, self.backbone, self.settings.ema)
        ema_update(self.target_projector, self.projector, self.settings.ema)
        with torch.no_grad():
            targets = [self.target_projector(self.target_backbone(view)) for view in batch.views]
        return {"similarity": symmetric_negative_cosine(predictions, targets)}

    def backbones(self) -> dict[str, Backbone]:
        """The online one first: it is what BYOL keeps. The server may have no target."""
        if self.keeps_target:
            return {"online": self.backbone}
        return {"online": self.backbone, "target": self.target_backbone}
