"""Orchestra: predict the target encoder's assignments to globally consistent clusters.

Lubana et al., "Orchestra: Unsupervised Federated Learning via Globally Consistent Clustering",
ICML 2022, Algorithms 1 and 2.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from orchestra_flwr.clustering import assignment_measures, consistency, unit_rows
from orchestra_flwr.clustering.clusterings import LOCAL_CENTROIDS, Clustering
from orchestra_flwr.clustering.solvers import Solver
from orchestra_flwr.config import Config, ConfigError, Section
from orchestra_flwr.data import Recipe
from orchestra_flwr.methods import (
    Batch,
    Contributes,
    KnowsChance,
    Method,
    Received,
    Role,
    StartsRounds,
    Step,
    role_of,
)
from orchestra_flwr.models import (
    Backbone,
    build_backbone,
    build_head,
    ema_update,
    evaluation_mode,
    normalise,
)
from orchestra_flwr.privacy.release import Contribution, Release
from orchestra_flwr.seeding import ClientSeed

# The published recipe: SimCLR's augmentations, with less blur and some solarisation for the view
# that predicts, and a rotation for the third, which only the rotation head needs.
RECIPES = (Recipe(), Recipe(blur_p=0.1, solarize_p=0.2), Recipe(rotate=True))

UNIT = 1e-3  # by which the length of a unit vector may differ from 1

ROLES = {
    "backbone": Role.SHARED,
    "projector": Role.SHARED,
    "rotation_head": Role.SHARED,
    "target_backbone": Role.SHARED,
    "target_projector": Role.SHARED,
    "global_centroids": Role.SERVER,
    "clustering": Role.TRANSIENT,
}


def cluster_loss(target: Tensor, online: Tensor, centroids: Tensor, temperature: float) -> Tensor:
    """Cross-entropy between the assignments of target and online features (equation 4).

    Args:
        target: (B, D) target features, unit vectors, without gradient.
        online: (B, D) online features of other augmentations of the same images, unit vectors.
        centroids: (G, D) global centroids, unit vectors.
        temperature: tau of both softmaxes.

    Returns:
        Scalar mean over the batch.
    """
    assignment = F.softmax(target @ centroids.T / temperature, dim=1)
    return F.cross_entropy(online @ centroids.T / temperature, assignment)


class Orchestra(Contributes, StartsRounds, KnowsChance, Method):
    """Online encoder, target encoder, rotation head, a clustering and global centroids.

    The paper's ablations (Table 6, section D.2): `method.rotation=false` has no rotation head and
    no view for it; with `method.target=false` the online encoder assigns, without a gradient.
    """

    class Settings(Section):
        ema: float = Field(0.996, ge=0, lt=1)
        temperature: float = Field(0.1, gt=0)
        rotation: bool = True  # predict rotations, against degenerate solutions (Table 6)
        target: bool = True  # a second encoder assigns; without it, the online one does (Table 6)

    uses = ("clustering",)

    settings: Settings
    global_centroids: Tensor

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        self._normalisation = config.data.normalise
        self._is_measured = config.privacy.epsilon is None
        self._observers: list[nn.Module] = []  # a copy of the target at most; no part of the state
        model, dim = config.model, config.model.projector_dim
        self.backbone = build_backbone(model, channels)
        # In evaluation mode only the projector of the assigning encoder is ever used.
        statistics = config.clustering.plugin.takes_clean_features
        head = partial(build_head, model, self.backbone.dim, dim)
        self.projector = head(statistics=statistics and not self.settings.target)
        if self.settings.rotation:
            self.rotation_head = nn.Linear(dim, 4)
        if self.settings.target:
            self.target_backbone = copy.deepcopy(self.backbone).requires_grad_(False)
            self.target_projector = head(statistics=statistics).requires_grad_(False)
            ema_update(self.target_projector, self.projector, decay=0)  # makes them equal
        self.clustering: Clustering = config.clustering.build(config)
        self._chosen_solver = config.clustering.solver
        self.solver: Solver = self._chosen_solver.build(config)
        self.register_buffer("global_centroids", self.clustering.first_centroids())

    @classmethod
    def unread(cls, config: Config) -> dict[str, str]:
        """Without a target there is no moving average."""
        unread = super().unread(config)
        if not config.method.settings.target:
            unread["method.ema"] = "with method.target=false"
        return unread

    @classmethod
    def release(cls, config: Config) -> Release:
        """What the clustering sends.

        Raises:
            ConfigError: the clustering, of a user's package, does not say it.
        """
        release: Release = config.clustering.plugin.release(config)
        fits = isinstance(release, Release)
        config.clustering.check_returned("release", release, fits, "a Release")
        return release

    def role(self, name: str) -> Role:
        """All is averaged but the global centroids and what a clustering remembers."""
        return role_of(name, ROLES)

    def recipes(self) -> Sequence[Recipe]:
        """Views for target, online encoder and rotation head."""
        return RECIPES if self.settings.rotation else RECIPES[:2]

    def backbones(self) -> dict[str, Backbone]:
        """The target first: Algorithm 2 returns it."""
        online = {"online": self.backbone}
        return {"target": self.target_backbone, **online} if self.settings.target else online

    def chance_losses(self, batch_size: int) -> dict[str, float]:
        """Global clusters, and rotations, are equally likely."""
        rotation = {"rotation": math.log(4)} if self.settings.rotation else {}
        return {"cluster": math.log(len(self.global_centroids)), **rotation}

    def start_round(self, received: Received) -> None:
        """The clustering begins anew: clients are stateless."""
        self._observers.clear()
        self.clustering.start_round(received.round, received.images, self._clean_features)

    def loss(self, batch: Batch) -> Step:
        """Cluster and rotation loss of one step (Algorithm 1, lines 5 to 16)."""
        for_target, for_online = batch.views[:2]
        feature = self.backbone(for_online)
        projection = self.projector(feature)
        online = F.normalize(projection, dim=1)
        rotation = self.rotation_loss(batch, projection) if self.settings.rotation else {}
        self._update_target()
        target = self._target_features(for_target)
        self.clustering.observe(batch.images, target)
        assigned = target, online, self.global_centroids, self.settings.temperature
        # Not with privacy.epsilon: a share of few images without noise must not leave a client.
        measures = partial(assignment_measures, *assigned) if self._is_measured else dict
        return Step(
            {"cluster": cluster_loss(*assigned), **rotation},
            {"backbone": (feature,), "projector": (projection,)},
            measures,
        )

    def rotation_loss(self, batch: Batch, projection: Tensor) -> dict[str, Tensor]:
        """Equation 3 of the third view, as a cross-entropy.

        Args:
            projection: (B, D) of the view that predicts assignments.
        """
        turns = self.rotation_head(self.projector(self.backbone(batch.views[2])))
        rotation = batch.rotations[2]
        assert rotation is not None
        return {"rotation": F.cross_entropy(turns, rotation)}

    def observe(self, batch: Batch) -> None:
        """The clustering observes the untrained target's features; a copy's statistics change."""
        if not self._observers:
            self._observers.append(copy.deepcopy(self._target()))
        with torch.no_grad():
            features = F.normalize(self._observers[0](batch.views[0]), dim=1)
        self.clustering.observe(batch.images, features)

    def end_round(self, images: Tensor, seed: ClientSeed) -> Contribution:
        """Local clustering (Algorithm 1, line 18)."""
        return self.clustering.end_round(images, seed)

    def update_server_state(
        self, contributions: Mapping[str, Tensor], generator: torch.Generator
    ) -> Mapping[str, float]:
        """Global clustering of all local centroids (Algorithm 2, lines 7 and 8)."""
        points, previous = contributions[LOCAL_CENTROIDS], self.global_centroids.clone()
        centroids = self.solver.solve(points, previous, generator)
        self._check_solved(centroids, previous)
        self.global_centroids.copy_(centroids)
        if not previous.any():
            return {}
        return {"consistency": consistency(unit_rows(points), previous, centroids)}

    def _check_solved(self, centroids: Any, previous: Tensor) -> None:
        """Refuses what a solver returned instead of (G, D) unit vectors."""
        fits = isinstance(centroids, Tensor) and centroids.shape == previous.shape
        wanted = f"a Tensor of centroids {tuple(previous.shape)}"
        self._chosen_solver.check_returned("solve", centroids, fits, wanted)
        lengths = centroids.norm(dim=1)
        if self._chosen_solver.is_users and not bool(((lengths - 1).abs() < UNIT).all()):
            raise ConfigError(
                f"{self._chosen_solver.written(self._chosen_solver.name)}: "
                f"{type(self.solver).__name__}.solve must return unit vectors, and returned "
                f"lengths from {float(lengths.min()):.3g} to {float(lengths.max()):.3g}"
            )

    def _target(self) -> nn.Module:
        """The assigning encoder: images to (B, D) features, not normalised."""
        if self.settings.target:
            return nn.Sequential(self.target_backbone, self.target_projector)
        return nn.Sequential(self.backbone, self.projector)

    @torch.no_grad()
    def _target_features(self, images: Tensor) -> Tensor:
        return F.normalize(self._target()(images), dim=1)

    def _clean_features(self, images: Tensor) -> Tensor:
        """(B, D) target features of (B, C, H, W) uint8 images as they are, in evaluation mode."""
        with evaluation_mode(self):
            return self._target_features(normalise(images / 255, self._normalisation))

    def _update_target(self) -> None:
        if self.settings.target:
            ema_update(self.target_backbone, self.backbone, self.settings.ema)
            ema_update(self.target_projector, self.projector, self.settings.ema)
