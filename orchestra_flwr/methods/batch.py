"""Input and result of a method's loss."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """One local step's input.

    Attributes:
        images: (B,) which of the client's images these are.
        views: one normalised (B, C, H, W) tensor for each of the method's recipes.
        rotations: for each view the (B,) quarter turns, 0 to 3; None if its recipe has none.
        generator: the only source of randomness in a loss, on the views' device.
        labels: (B,) classes of the images, UNLABELLED (-1) where none is known; None for methods
            that learn from no labels.
    """

    images: Tensor
    views: tuple[Tensor, ...]
    rotations: tuple[Tensor | None, ...]
    generator: torch.Generator
    labels: Tensor | None = None


@dataclass(frozen=True)
class Step:
    """The result of a loss.

    Attributes:
        losses: named scalar parts; their sum is minimised.
        features: what terms may use, by the module that made it ("backbone", "projector",
            "predictor"): (B, dim) for each view that passed through it with gradient.
        measures: returns named scalars without gradient, to be recorded; only called in a client's
            first step of a round.
    """

    losses: Mapping[str, Tensor]
    features: Mapping[str, tuple[Tensor, ...]] = field(default_factory=dict)
    measures: Callable[[], Mapping[str, Tensor]] = dict
