"""FeatARC's alignment: local features stay near those of the received model.

Wang et al., "Does Learning from Decentralized Non-IID Unlabeled Data Benefit from Self
Supervision?", ICLR 2023 (arXiv 2210.10947), Algorithm 2.
"""

import copy
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orchestra_flwr.config import Config, ConfigError, Section
from orchestra_flwr.methods import Batch, Method, Received, Step
from orchestra_flwr.models import BatchNormPolicy, check_statistics, extract_features
from orchestra_flwr.terms import Term

Between = Literal["projector_projector", "projector_backbone", "predictor_projector"]


def mean_negative_cosine(views: Sequence[Tensor], target: Tensor) -> Tensor:
    """-cos of each view's features and the target's, averaged over images and views.

    Args:
        views: (B, D) features of each view; only their directions matter.
        target: (B, D) features that get no gradient.

    Returns:
        Scalar from -1 (all point the same way) to 1.
    """
    target = target.detach()
    return -torch.stack([F.cosine_similarity(view, target).mean() for view in views]).mean()


class Alignment(Term):
    """Minus the cosine between a view's features and those of the image in the received model.

    The received model is this round's, before merging. It encodes each image once a round, without
    augmentation and in evaluation mode. Norms of the projector without running statistics
    normalise by all of the client's images.

    Raises:
        ConfigError: the method has no such features, or their widths differ.
    """

    class Settings(Section):
        between: Between = "projector_projector"  # the client's features, and the received model's

    needs_received: ClassVar[bool] = True

    settings: Settings

    def __init__(self, settings: Settings, config: Config, method: Method) -> None:
        super().__init__(settings, config, method)
        self._local, self._frozen = settings.between.split("_")
        self._batch_norm = BatchNormPolicy.of(config)
        self._normalisation = config.data.normalise
        self._batch_size = config.training.batch_size
        self._target: Tensor | None = None
        self._refuse_misfits(config, method)

    @classmethod
    def check(cls, config: Config) -> None:
        """Refuses received models without BatchNorm statistics, which evaluation mode needs."""
        weight = config.terms["alignment"].weight
        if weight > 0:
            check_statistics(config, f"terms.alignment.weight={weight:g}")

    def _refuse_misfits(self, config: Config, method: Method) -> None:
        between = self.settings.between
        key = f"terms.alignment.between={between}: "
        for part in (self._local, self._frozen):
            if not hasattr(method, part):
                raise ConfigError(f"{key}method={config.method.name} has no {part}")
        backbone, projector = int(method.backbone.dim), config.model.projector_dim  # type: ignore[arg-type]
        if between == "projector_backbone" and backbone != projector:
            raise ConfigError(
                f"{key}needs equal widths, and the backbone has {backbone}: "
                f"model.projector_dim={projector} must be {backbone}"
            )

    def start_round(self, method: Method, received: Received) -> None:
        """Computes the received model's features of all of the client's images."""
        assert received.state is not None
        images, size, by = received.images, self._batch_size, self._normalisation
        backbone = _as_received(method, "backbone", received)
        if self._batch_norm.is_local:
            backbone = self._batch_norm.on_client(backbone, images, size, by)
        features = extract_features(backbone, images, size, by=by)
        if self._frozen == "projector":
            features = _projected(_as_received(method, "projector", received), features)
        self._target = features

    def loss(self, method: Method, batch: Batch, step: Step) -> Tensor:
        """The mean over the views, a scalar from -1 to 1."""
        assert self._target is not None
        return mean_negative_cosine(step.features[self._local], self._target[batch.images])


def _as_received(method: Method, part: str, received: Received) -> nn.Module:
    """A copy of a module with the received weights, or the client's where none were received."""
    assert received.state is not None
    module = copy.deepcopy(method.get_submodule(part)).requires_grad_(False)
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if (sent := received.state.get(f"{part}.{name}")) is not None:
                tensor.copy_(sent)
    return module.eval()


@torch.no_grad()
def _projected(projector: nn.Module, features: Tensor) -> Tensor:
    """(n, D) projections of (n, dim) features, in one batch."""
    single = len(features) == 1  # BatchNorm needs two
    projections: Tensor = projector(features.repeat(2, 1) if single else features)
    return projections[: len(features)].float()
