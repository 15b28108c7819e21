"""BYOL: predict the features that a slow copy of the encoder has for another view.

Grill et al., "Bootstrap Your Own Latent", NeurIPS 2020.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial

import torch
from pydantic import Field
from torch import Tensor

from orchestra_flwr.config import Config, Section
from orchestra_flwr.data import Recipe
from orchestra_flwr.methods.base import Batch, Method, Step
from orchestra_flwr.methods.roles import Role, role_of
from orchestra_flwr.methods.simsiam import symmetric_negative_cosine
from orchestra_flwr.models import Backbone, build_backbone, build_head, ema_update

RECIPES = (Recipe(blur_p=1.0), Recipe(blur_p=0.1, solarize_p=0.2))

ROLES = {
    "backbone": Role.SHARED,
    "projector": Role.SHARED,
    "predictor": Role.SHARED,
    "target_backbone": Role.SHARED,
    "target_projector": Role.SHARED,
}


class BYOLSettings(Section):
    """Options under `method.` for method=byol."""

    ema: float = Field(0.996, ge=0, lt=1)


class BYOL(Method):
    """Online encoder with a predictor, and a target encoder that follows it.

    The target is an average over the steps of all rounds. A client without memory cannot keep it:
    like Orchestra's it then travels with the online encoder and is averaged by the server. Clients
    that keep state of their own (`merging`) keep their targets, which then do not travel.
    """

    Settings = BYOLSettings

    settings: BYOLSettings

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        self._remembers = False
        model, dim = config.model, config.model.projector_dim
        head = partial(build_head, last_norm=False, plain_norm=True)
        self.backbone = build_backbone(model, channels)
        self.projector = head(model, self.backbone.dim, 2 * dim)
        self.predictor = head(model, dim, 2 * dim, bias=True)
        self.target_backbone = copy.deepcopy(self.backbone).requires_grad_(False)
        self.target_projector = copy.deepcopy(self.projector).requires_grad_(False)

    def remember(self) -> None:
        """From here on the target is each client's own and does not travel."""
        self._remembers = True

    def start_local_state(self) -> None:
        """A client's target starts as the online encoder that it received, and follows at once."""
        self.target_backbone.load_state_dict(self.backbone.state_dict())
        self.target_projector.load_state_dict(self.projector.state_dict())

    def role(self, name: str) -> Role:
        """As :meth:`Method.role`; the target is local where clients keep state."""
        local = self._remembers and name.startswith("target_")
        return Role.LOCAL if local else role_of(name, ROLES)

    def recipes(self) -> Sequence[Recipe]:
        """BYOL's two different augmentations, one always blurred, one seldom, but solarized."""
        return RECIPES

    def loss(self, batch: Batch) -> Step:
        """Each view predicts the target's features of the other one.

        The target follows the online encoder once a step, before it is used: what BYOL does after
        the optimizer's step is here done at the start of the next one. The steps of a round are
        then the same but for the ends: the first one takes in what the server sent, and the last
        one's result is taken in by the next round.
        """
        seen = [self._predicted(view) for view in batch.views]
        features, projections, predictions = zip(*seen, strict=True)
        ema_update(self.target_backbone, self.backbone, self.settings.ema)
        ema_update(self.target_projector, self.projector, self.settings.ema)
        with torch.no_grad():
            targets = [self.target_projector(self.target_backbone(view)) for view in batch.views]
        return Step(
            {"similarity": symmetric_negative_cosine(predictions, targets)},
            {"backbone": features, "projector": projections, "predictor": predictions},
        )

    def _predicted(self, view: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, dim) outputs of backbone, projector and predictor."""
        feature = self.backbone(view)
        projection = self.projector(feature)
        return feature, projection, self.predictor(projection)

    def backbones(self) -> dict[str, Backbone]:
        """The online one first: it is what BYOL keeps. The server may have no target."""
        if self._remembers:
            return {"online": self.backbone}
        return {"online": self.backbone, "target": self.target_backbone}
