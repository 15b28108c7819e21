"""BatchNorm's running statistics: what becomes of them in training, on the wire, in evaluation.

Clients have different images, so a policy says whose statistics (moving averages of the batches'
means and variances) a model has: `model.batch_norm`, read through :class:`BatchNormPolicy`:

averaged
    The server averages statistics like weights.
local
    Every BatchNorm stays with its client, weights and biases as well: FedBN (Li et al., ICLR 2021,
    arXiv 2102.07623). The server's model keeps norms that nobody trained. To be evaluated or saved
    it is recalibrated.
recalibrated
    Clients send weights and biases, but no statistics. Before a model is evaluated or saved, its
    statistics are computed from the evaluator's images in one pass: the static BatchNorm of
    HeteroFL (Diao et al., ICLR 2021, arXiv 2010.01264), with the mean over batches of Wu and
    Johnson, "Rethinking 'Batch' in BatchNorm", 2021 (arXiv 2105.07576).
frozen
    Backbones keep the statistics that they begin with, those of the images of their pretraining,
    and normalise by them in training as well; weights and biases are trained, as in detectors
    (He et al., CVPR 2016, arXiv 1512.03385, appendix A, where weights and biases are fixed too)
    and in the second stage of FixBN (Zhong et al., 2023, arXiv 2303.06530). No client sends them.

Without a name (null) it follows from other keys (:meth:`BatchNormPolicy.of`). A new run with
pretrained weights has `frozen` where nobody has set the key (:meth:`Backbone.suggested`). Heads,
which begin with random weights, are never frozen.
"""

import copy
import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from orchestra_flwr.config import BatchNorm, Config, ConfigError, ModelConfig, Normalisation
from orchestra_flwr.console.image_count import OnProgress, no_progress
from orchestra_flwr.models.features import device_of, evaluation_mode
from orchestra_flwr.models.normalisation import normalise

MEAN, VARIANCE = "running_mean", "running_var"  # the statistics, as torch calls them
COUNTER = "num_batches_tracked"  # an integer beside them, which nothing here reads

RECALIBRATED = "recalibrated"  # with statistics of the evaluator's images
INITIAL = "initial"  # with statistics of no images: mean 0, variance 1

N = TypeVar("N", bound=nn.Module)


class FreezableNorms(nn.Module):
    """A network whose BatchNorm can be frozen: its statistics then stay as they are."""

    norms_are_frozen = False  # whether every BatchNorm in it is in evaluation mode, always
    frozen_paths: Collection[str] = ()  # of BatchNorm that is frozen even where the rest is not

    def freeze_norms(self, paths: Collection[str] | None = None) -> None:
        """Keeps the statistics of the norms at these paths from now on, in training mode too.

        Args:
            paths: of norms; None: of all.
        """
        self.norms_are_frozen |= paths is None
        self.frozen_paths = paths or self.frozen_paths
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        """Sets the mode of all modules; frozen norms stay in evaluation mode."""
        super().train(mode)
        for norm in _frozen_norms(self):
            norm.eval()
        return self


@dataclass(frozen=True)
class BatchNormPolicy:
    """What a run does with BatchNorm."""

    name: BatchNorm  # of the policy
    asked_by: str  # the key, with its value, from which it follows
    model: ModelConfig  # the run's
    clips: bool = False  # whether clients' updates are clipped (`privacy.clip`)

    @classmethod
    def of(cls, config: Config) -> Self:
        """The policy of a run."""
        model, merging, clip = config.model, config.merging, config.privacy.clip
        if model.batch_norm is not None:
            name, asked_by = model.batch_norm, f"model.batch_norm={model.batch_norm}"
        elif merging.plugin.local_norms:
            name, asked_by = "local", f"merging={merging.name}"
        elif clip is not None:
            name, asked_by = "recalibrated", f"privacy.clip={clip:g}"
        else:
            name, asked_by = "averaged", "model.batch_norm=null"
        return cls(name, asked_by, model, clip is not None)

    @cached_property
    def in_backbone(self) -> bool:
        """Whether the backbone has BatchNorm; heads may have it even if not."""
        return bool(self.model.plugin.has_batch_norm(self.model))

    @property
    def is_local(self) -> bool:
        """Whether each client keeps norms of its own."""
        return self.name == "local"

    def kept_by_clients(self, learner: nn.Module) -> set[str]:
        """Names of the shared tensors that stay with each client instead.

        Raises:
            ConfigError: there is no BatchNorm.
        """
        if not self.is_local:
            return set()
        names = {f"{path}.{name}" for path, norm in _norms(learner) for name in norm.state_dict()}
        if not names:
            raise ConfigError(
                f"{self.asked_by}: there is no BatchNorm to keep; model.norm=batch has some"
            )
        return names

    def only_sent_down(self, learner: nn.Module) -> set[str]:
        """Names of the shared tensors that no client sends back.

        Statistics of frozen norms, which no client changes, and all statistics where these are not
        averaged. With `privacy.clip` they never are: their differences are far larger than those of
        trained weights, so clipping would leave almost nothing of the training, and noise would
        make variances negative.
        """
        if self.is_local:
            return set()
        all_norms = self.name == "recalibrated" or self.clips
        frozen = {norm for network in learner.modules() for norm in _frozen_norms(network)}
        return {
            f"{path}.{name}"
            for path, norm in _norms(learner)
            if all_norms or norm in frozen
            for name in (MEAN, VARIANCE)
        }

    @property
    def can_recalibrate(self) -> bool:
        """Whether the backbone's statistics may be recalibrated."""
        return self.name != "frozen" and self.in_backbone

    @property
    def clients_recalibrate(self) -> bool:
        """Whether the backbone that clients receive has initial statistics, those of no images."""
        return self.name == "recalibrated" and self.in_backbone

    def on_client(self, backbone: N, images: Tensor, batch_size: int, by: Normalisation) -> N:
        """A client's backbone for evaluation mode, with statistics of its images if it has none.

        It has none before any training, nor in the first round of a client that keeps its own
        BatchNorm, when all else may be trained: features would then mean nothing.

        Args:
            images: (n, C, H, W) uint8, all of the client's, n >= 1. A single one is seen twice, as
                in training.
            batch_size, by: as for :func:`recalibrated`.

        Returns:
            The backbone itself, or a copy.
        """
        has_none = self.can_recalibrate and not has_statistics(backbone)
        if not (self.clients_recalibrate or has_none):
            return backbone
        images = images if len(images) > 1 else images.repeat(2, 1, 1, 1)
        return recalibrated(backbone, images, batch_size, by)

    def of_servers_model(self, *, has_images: bool) -> str:
        """Whose statistics the server's model has when it is evaluated or saved.

        Args:
            has_images: whether the server has images to recalibrate it with.

        Returns:
            "averaged", "frozen", `RECALIBRATED`, `INITIAL`, or "none" for no BatchNorm.
        """
        if not self.in_backbone:
            return "none"
        if self.name in ("averaged", "frozen"):
            return self.name
        return RECALIBRATED if has_images else INITIAL


def check_batch_norm(config: Config) -> None:
    """Refuses a policy that contradicts other keys.

    Raises:
        ValueError: names the keys.
    """
    policy, model, merging = BatchNormPolicy.of(config), config.model, config.merging
    chosen = f"model.batch_norm={model.batch_norm}"
    local_by = f"merging={merging.name}" if merging.plugin.local_norms else policy.asked_by
    for key, value in {"init": config.init, **model.first_weights}.items():
        if value is not None and (policy.is_local or merging.plugin.local_norms):
            raise ValueError(
                f"{key}={value}: must not be given with {local_by}, whose clients begin "
                "with BatchNorm of their own"
            )
    if model.batch_norm is not None and policy.name != "local":
        if merging.plugin.local_norms:
            raise ValueError(
                f"{chosen}: must be null or local with merging={merging.name}, whose clients keep "
                "their BatchNorm"
            )
        if not policy.in_backbone:
            raise ValueError(f"{chosen}: must be null, model={model.name} has no BatchNorm")
        if policy.name == "averaged" and policy.clips:
            raise ValueError(
                f"{chosen}: must not be averaged with privacy.clip={config.privacy.clip:g}, "
                "statistics are no part of a clipped update"
            )


def has_statistics(backbone: nn.Module) -> bool:
    """Whether BatchNorm has statistics of images: a running mean of it has moved from 0."""
    means = [norm.running_mean for _, norm in _norms(backbone)]
    return any(mean is not None and bool(mean.any()) for mean in means)


def check_frozen(backbone: FreezableNorms) -> None:
    """Refuses to freeze the statistics of an untrained backbone.

    Raises:
        ConfigError: it is frozen, and none of its running means has moved from 0.
    """
    if backbone.norms_are_frozen and not has_statistics(backbone):
        raise ConfigError(
            "model.batch_norm=frozen: the backbone begins with statistics of no images; "
            "pretrained weights have some (init, or model.weights of model=timm), and "
            "model.batch_norm=averaged makes new ones"
        )


def check_statistics(config: Config, reader: str, *, sent: bool = False) -> None:
    """Refuses options that use a received model in evaluation mode without its statistics.

    Args:
        reader: those options, "<key>=<value>".
        sent: whether it must be the model as the server sent it, with its projector.

    Raises:
        ValueError: names them and the remedy.
    """
    policy, model, clip = BatchNormPolicy.of(config), config.model, config.privacy.clip
    if sent and policy.is_local:
        raise ValueError(
            f"{policy.asked_by}: each client's own BatchNorm does not go with {reader}, which "
            "takes features of the model as the server sent it"
        )
    projector = sent and clip is not None and model.norm == "batch" and model.projector != "plain"
    if not policy.clients_recalibrate and not projector:
        return
    cause = policy.asked_by if policy.clients_recalibrate else f"privacy.clip={clip:g}"
    alone = projector or model.plugin.obeys_norm
    hint = "has none" if alone else "and a model that obeys it have none"
    raise ValueError(
        f"{cause}: must be null with {reader} and BatchNorm (model={model.name}), whose statistics "
        f"are not averaged then; model.norm=group {hint}"
    )


@torch.no_grad()
def recalibrated(
    backbone: N,
    images: Tensor,
    batch_size: int,
    by: Normalisation,
    on_progress: OnProgress = no_progress,
    *,
    device: torch.device | None = None,
) -> N:
    """A copy of a backbone with BatchNorm statistics of these images; frozen ones stay.

    One pass over the images without augmentation, in a fixed shuffled order: images often lie
    sorted by class, and one class has less variance. Each norm takes the mean over the batches,
    while the norms before it normalise by the batch. Weights and biases stay.

    Args:
        backbone: maps normalised images (B, C, H, W) to features; not changed.
        images: (N, C, H, W) uint8, N >= 2, on any device.
        batch_size: most images at once, but never fewer than two; sizes of batches differ by at
            most one, so that all images count (nearly) the same.
        by: how they are normalised, `data.normalise`.
        on_progress: called after each batch with the images done and their total.
        device: where the pass is computed; None: on the backbone's.

    Returns:
        The copy, on the backbone's device, its modules in the modes that they had.

    Raises:
        ValueError: fewer than two images, which have no variance.
    """
    if len(images) < 2:
        raise ValueError(f"{len(images)} images: BatchNorm's statistics need at least 2")
    result = copy.deepcopy(backbone)
    frozen = _frozen_norms(result)
    norms = [norm for _, norm in _norms(result) if norm not in frozen]
    if not norms:
        return result
    momenta = [norm.momentum for norm in norms]
    home = device_of(result)
    result.to(device := device or home)
    batches = max(1, min(math.ceil(len(images) / batch_size), len(images) // 2))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    done = 0
    with evaluation_mode(result):
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a mean over all batches, each of the same weight
            norm.train()
        for chosen in torch.tensor_split(order.to(images.device), batches):
            result(normalise(images[chosen].to(device).float() / 255, by))
            done += len(chosen)
            on_progress(done, len(images))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return result.to(home)


@contextmanager
def without_counters(network: nn.Module) -> Iterator[None]:
    """Inside the block no BatchNorm counts its batches: a kernel less for each norm and pass."""
    norms = [norm for _, norm in _norms(network) if norm.momentum is not None]  # None reads them
    counters = [norm.num_batches_tracked for norm in norms]
    for norm in norms:
        norm.num_batches_tracked = None
    try:
        yield
    finally:
        for norm, counter in zip(norms, counters, strict=True):
            norm.num_batches_tracked = counter


def is_statistic(name: str) -> bool:
    """Whether a tensor of this name is a BatchNorm's running mean or variance."""
    return name.endswith((MEAN, VARIANCE))


def is_variance(name: str) -> bool:
    """Whether a tensor of this name is a BatchNorm's running variance, which must stay above 0."""
    return name.endswith(VARIANCE)


def statistics_of(network: nn.Module) -> Iterator[tuple[str, set[str]]]:
    """The path of every BatchNorm in a network, with the names of its tensors there."""
    for path, norm in _norms(network):
        yield path, {f"{path}.{name}" for name in norm.state_dict()}


def _norms(network: nn.Module) -> Iterator[tuple[str, _BatchNorm]]:
    """Every BatchNorm in a network, with its path."""
    for path, module in network.named_modules():
        if isinstance(module, _BatchNorm):
            yield path, module


def _frozen_norms(network: nn.Module) -> set[_BatchNorm]:
    """The frozen BatchNorm modules of a network."""
    if not isinstance(network, FreezableNorms):
        return set()
    every, paths = network.norms_are_frozen, network.frozen_paths
    return {norm for path, norm in _norms(network) if every or path in paths}
