"""Orchestra: predict the target encoder's assignments to globally consistent clusters.

Lubana et al., "Orchestra: Unsupervised Federated Learning via Globally Consistent Clustering",
ICML 2022, Algorithms 1 and 2.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from orchestra_flwr.clustering import (
    FeatureMemory,
    assignment_measures,
    clustering_settings,
    consistency,
    global_clustering,
    gradient_clustering,
    local_clustering,
    private_clustering,
    unit_rows,
)
from orchestra_flwr.config import Config, Section
from orchestra_flwr.data import Recipe, first_copies
from orchestra_flwr.methods.base import Batch, Method, Received, Step
from orchestra_flwr.methods.release import Contribution, Release
from orchestra_flwr.methods.roles import Role, role_of
from orchestra_flwr.models import (
    Backbone,
    build_backbone,
    build_head,
    check_statistics,
    ema_update,
    normalise,
)
from orchestra_flwr.models.precision import in_float32
from orchestra_flwr.privacy import calibrate
from orchestra_flwr.seeding import ClientSeed, torch_generator

cross_entropy = in_float32(F.cross_entropy)
normalize = in_float32(F.normalize)

FEATURE_BATCH = 64  # images of which private clustering takes the features at a time, always
# Private centroids are of features of the model as clients receive it, which nobody has trained
# before the second round: such features are all alike, so their centroids would cost epsilon and
# say nothing.
FIRST_PRIVATE_ROUND = 2
# The published recipe: SimCLR's augmentations, with less blur and some solarisation for the view
# that predicts, and a rotation for the third, which only the rotation head needs.
RECIPES = (Recipe(), Recipe(blur_p=0.1, solarize_p=0.2), Recipe(rotate=True))

ROLES = {
    "backbone": Role.SHARED,
    "projector": Role.SHARED,
    "rotation_head": Role.SHARED,
    "target_backbone": Role.SHARED,
    "target_projector": Role.SHARED,
    "global_centroids": Role.SERVER,
    "memory": Role.TRANSIENT,
}


@in_float32
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


class OrchestraSettings(Section):
    """Options under `method.` for method=orchestra."""

    ema: float = Field(0.996, ge=0, lt=1)
    temperature: float = Field(0.1, gt=0)
    rotation: bool = True  # predict rotations, against degenerate solutions (Table 6)
    target: bool = True  # a second encoder assigns; without it, the online one does (Table 6)


class Orchestra(Method):
    """Online encoder, target encoder, rotation head, global centroids and feature memory.

    The paper's ablations (Table 6, section D.2) leave modules out: `method.rotation=false` the
    rotation head with its view and its pass, `method.target=false` the target. Then nothing is
    left that is slow to follow: the online encoder itself assigns, without a gradient, and is what
    is clustered, averaged and kept. There is no copy of it that would travel for nothing.
    """

    Settings = OrchestraSettings
    stackable = True
    reads_clustering = True
    private_release = " (clustering=private adds noise)"
    settings: OrchestraSettings
    global_centroids: Tensor

    def __init__(self, config: Config, channels: int) -> None:
        super().__init__(config, channels)
        self.clustering = clustering_settings(config)
        self.privacy = config.privacy
        self._normalisation = config.data.normalise
        model, dim = config.model, config.model.projector_dim
        self.backbone = build_backbone(model, channels)
        # Only private clustering uses a projector in evaluation mode, that of what assigns.
        read = self.clustering.name == "private"
        head = partial(build_head, model, self.backbone.dim, dim)
        self.projector = head(statistics=read and not self.settings.target)
        if self.settings.rotation:
            self.rotation_head = nn.Linear(dim, 4)
        if self.settings.target:
            self.target_backbone = copy.deepcopy(self.backbone).requires_grad_(False)
            self.target_projector = head(statistics=read).requires_grad_(False)
            ema_update(self.target_projector, self.projector, decay=0)  # makes them equal
        self.memory = FeatureMemory(self.clustering.memory, dim)
        self._received_features: Tensor | None = None  # (n, D), for private clustering
        first = torch.zeros(self.clustering.global_clusters, dim)
        if self.clustering.name == "private":
            generator = torch_generator(config.seed, "first centroids")
            first = F.normalize(torch.randn(first.shape, generator=generator), dim=1)
        self.register_buffer("global_centroids", first)

    @classmethod
    def unread(cls, config: Config) -> dict[str, str]:
        """As :meth:`Plugin.unread`."""
        found, clustering = super().unread(config), clustering_settings(config)
        if clustering.solver == "gradient":
            found["clustering.damping"] = "with clustering.solver=gradient"
        if clustering.name == "features":
            found["clustering.local_clusters"] = "with clustering=features"
        if clustering.name == "private":
            found["clustering.memory"] = "with clustering=private, which sees all images"
        if not config.method.settings.target:
            found["method.ema"] = "with method.target=false"
        return found

    @classmethod
    def check(cls, config: Config) -> None:
        """As :meth:`Method.check`: private clustering needs a model that all clients receive."""
        super().check(config)
        if clustering_settings(config).name != "private":
            return
        merging = config.merging
        if merging.plugin.remembers or merging.plugin.local_norms:
            raise ValueError(
                f"merging={merging.name}: must be replace with clustering=private, whose centroids "
                "are of features of the model as the server sent it"
            )
        check_statistics(config, "clustering=private")

    @classmethod
    def release(cls, config: Config) -> Release:
        """At most L local centroids; with clustering=features a row for each feature remembered."""
        clustering, privacy = clustering_settings(config), config.privacy
        features = clustering.name == "features"
        rows = clustering.memory if features else clustering.local_clusters
        return Release(
            {"local_centroids": (rows, config.model.projector_dim)},
            label="features" if features else "centroids",
            least_images=privacy.k_min,
            longest=1.0,
            may_be_empty=True,
            first_round=FIRST_PRIVATE_ROUND if clustering.name == "private" else 0,
            epsilon=privacy.epsilon,
            delta=privacy.delta if privacy.epsilon is not None else None,
            exposes="the features of single images (clustering=features)" if features else "",
        )

    def role(self, name: str) -> Role:
        """As :meth:`Method.role`."""
        return role_of(name, ROLES)

    def recipes(self) -> Sequence[Recipe]:
        """Views for target, online encoder and rotation head."""
        return RECIPES if self.settings.rotation else RECIPES[:2]

    def backbones(self) -> dict[str, Backbone]:
        """The target first: Algorithm 2 returns it."""
        online = {"online": self.backbone}
        return {"target": self.target_backbone, **online} if self.settings.target else online

    def start_round(self, received: Received) -> None:
        """Clients are stateless: nothing is remembered from earlier rounds.

        Private clustering takes its features here, of the model as it was received. Training
        changes the model by every image, and so the features of all others, which no noise accounts
        for.
        """
        self.memory.clear()
        if self.clustering.name == "private" and received.round >= FIRST_PRIVATE_ROUND:
            self._received_features = self._features_alone(received.images)

    def loss(self, batch: Batch) -> Step:
        """Cluster and rotation loss of one step (Algorithm 1, lines 5 to 16)."""
        for_target, for_online = batch.views[:2]
        feature = self.backbone(for_online)
        projection = self.projector(feature)
        online = normalize(projection, dim=1)
        rotation = self.rotation_loss(batch, projection) if self.settings.rotation else {}
        self._update_target()
        target = self._target_features(for_target)
        self.memory.push(batch.images, target)
        cluster = cluster_loss(target, online, self.global_centroids, self.settings.temperature)
        return Step(
            {"cluster": cluster, **rotation},
            {"backbone": (feature,), "projector": (projection,)},
            partial(self._measures, target, online),
        )

    def rotation_loss(self, batch: Batch, projection: Tensor) -> dict[str, Tensor]:
        """Equation 3, as a cross-entropy, of the third view.

        Args:
            batch: of the step.
            projection: (B, D) of the view that predicts assignments.
        """
        turns = self.rotation_head(self.projector(self.backbone(batch.views[2])))
        rotation = batch.rotations[2]
        assert rotation is not None
        return {"rotation": cross_entropy(turns, rotation)}

    def _measures(self, target: Tensor, online: Tensor) -> dict[str, Tensor]:
        """Nothing beside privacy: a share of few images without noise must not leave a client."""
        if self.privacy.epsilon is not None:
            return {}
        temperature = self.settings.temperature
        return in_float32(assignment_measures)(target, online, self.global_centroids, temperature)

    def observe(self, batch: Batch) -> None:
        """Fills the memory from the untrained target; its BatchNorm statistics stay untouched."""
        with torch.no_grad():
            features = normalize(copy.deepcopy(self._target())(batch.views[0]), dim=1)
        self.memory.push(batch.images, features)

    def end_round(self, images: Tensor, seed: ClientSeed) -> Contribution:
        """Local clustering (Algorithm 1, line 18), of the memory or, privately, of all images.

        An image is one point however often it was seen and however many copies of it there are,
        so every centroid stands for at least `privacy.k_min` images that differ in their pixels;
        with fewer different images than that there is no centroid. With
        clustering=features (the paper's "Reps", Table 2) the features themselves are sent: the
        bound that clustering is held against, and NOT PRIVATE.
        """
        if self.clustering.name == "private":
            return self._private_centroids(seed)
        if self.clustering.name == "features":
            return Contribution({"local_centroids": self.memory.latest(images)}, smallest_group=1)
        clusters = in_float32(local_clustering)(
            self.memory.latest(images),
            self.clustering.local_clusters,
            seed.generator("cluster"),
            k_min=self.privacy.k_min,
        )
        return Contribution(
            arrays={"local_centroids": clusters.centroids},
            smallest_group=min(clusters.sizes.tolist(), default=0),
        )

    def update_server_state(
        self, contributions: Mapping[str, Tensor], generator: torch.Generator
    ) -> Mapping[str, float]:
        """Global clustering of all local centroids (Algorithm 2, lines 7 and 8)."""
        points = contributions["local_centroids"]
        before = self.global_centroids.clone()
        if self.clustering.solver == "gradient":
            found = gradient_clustering(points, before, generator)
        else:
            damping = self.clustering.damping
            found = global_clustering(points, before, generator, damping=damping)
        self.global_centroids.copy_(found)
        return (
            {"consistency": consistency(unit_rows(points), before, found)} if before.any() else {}
        )

    def _private_centroids(self, seed: ClientSeed) -> Contribution:
        """Differentially private centroids of one feature for each different image."""
        assert self.privacy.epsilon is not None and self._received_features is not None
        centroids = in_float32(private_clustering)(
            self._received_features, self.clustering.local_clusters,
            calibrate(self.privacy.epsilon, self.privacy.delta), seed.noise_key(),
            k_min=self.privacy.k_min, dimensions=self.privacy.dimensions,
        )  # fmt: skip
        self._received_features = None
        return Contribution({"local_centroids": centroids})

    def _features_alone(self, images: Tensor) -> Tensor:
        """(m, D) target features of the m different images, no bit of which another one changes.

        The target sees images as they are and in evaluation mode: BatchNorm's statistics of a
        batch would let an image touch the features of others. Copies of an image are one: what is
        hidden is an image with all its copies.

        Libraries choose kernels, and so the order of additions, by the size of a batch. If the
        last batch were as large as what is left, one image more could change the last bits of
        others, and the side of a hyperplane on which they lie, which no noise accounts for. So
        all batches have one size, the last one filled up with black images.
        """
        different = torch.unique(first_copies(images)).to(images.device)
        if len(different) < len(images):
            images = images[different]
        missing = -len(images) % FEATURE_BATCH
        batches = torch.split(F.pad(images, (0, 0, 0, 0, 0, 0, 0, missing)), FEATURE_BATCH)
        training = self.training
        self.eval()
        features = [self._target_features(self._normalised(batch)) for batch in batches]
        self.train(training)
        return torch.cat(features)[: len(images)]

    def _normalised(self, images: Tensor) -> Tensor:
        return normalise(images / 255, self._normalisation)

    def _target(self) -> nn.Module:
        """What assigns: images to (B, D) features, not normalised."""
        if self.settings.target:
            return nn.Sequential(self.target_backbone, self.target_projector)
        return nn.Sequential(self.backbone, self.projector)

    @torch.no_grad()
    def _target_features(self, images: Tensor) -> Tensor:
        return normalize(self._target()(images), dim=1)

    def _update_target(self) -> None:
        if self.settings.target:
            ema_update(self.target_backbone, self.backbone, self.settings.ema)
            ema_update(self.target_projector, self.projector, self.settings.ema)
