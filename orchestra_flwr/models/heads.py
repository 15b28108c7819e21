"""Projectors and predictors: the heads between a backbone and a method's loss."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

from torch import Tensor, nn

from orchestra_flwr.config import ModelConfig
from orchestra_flwr.models.norm_layers import head_norm
from orchestra_flwr.models.precision import network_pass

HeadNorm = Callable[..., nn.Module]  # takes `features` and `affine`, as :func:`head_norm`


class Head(nn.Sequential):
    """A sequence of layers that compute in `training.precision`."""

    @network_pass
    def forward(self, features: Tensor) -> Tensor:
        """(B, inputs) to (B, outputs), float32."""
        for layer in self:
            features = layer(features)
        return features


def build_head(
    model: ModelConfig,
    inputs: int,
    *hidden: int,
    bias: bool = False,
    last_norm: bool = True,
    statistics: bool = False,
    plain_norm: bool = False,
) -> Head:
    """A method's projector or predictor: (B, inputs) to (B, `model.projector_dim`).

    Args:
        model: `projector` chooses the method's own :func:`mlp`, a :func:`plain_head`, or a plain
            head with a norm ("plain_norm"); `projector_hidden` replaces the hidden widths.
        hidden: the method's own widths of the hidden layers, at least one.
        bias, last_norm: as for :func:`mlp`.
        statistics: whether BatchNorm keeps running statistics, for a head used in evaluation mode.
        plain_norm: whether a plain head has a norm, for methods that collapse without one.
    """
    norm = partial(head_norm, model.norm, groups=model.groups, statistics=statistics)
    if model.projector_hidden is not None:
        hidden = (model.projector_hidden,) * len(hidden)
    if model.projector == "orchestra":
        return mlp(inputs, *hidden, model.projector_dim, norm=norm, bias=bias, last_norm=last_norm)
    has_norm = plain_norm or model.projector == "plain_norm"
    return plain_head(inputs, hidden[0], model.projector_dim, norm if has_norm else None)


def plain_head(inputs: int, hidden: int, outputs: int, norm: HeadNorm | None = None) -> Head:
    """Linear, ReLU, Linear, both with biases: (B, inputs) to (B, outputs).

    The head of "A Mutual Information Perspective on Federated Contrastive Learning" (ICLR 2024),
    whose SimSiam also has a norm before the ReLU.
    """
    norms = [] if norm is None else [norm(hidden)]
    return Head(
        nn.Linear(inputs, hidden), *norms, nn.ReLU(inplace=True), nn.Linear(hidden, outputs)
    )


def mlp(*widths: int, norm: HeadNorm, bias: bool = False, last_norm: bool = True) -> Head:
    """Linear layers with a norm and ReLU between them: (B, widths[0]) to (B, widths[-1]).

    The hidden layers have no biases, which their norms would remove again.

    Args:
        widths: of the input, of every hidden layer and of the output.
        norm: makes their norms.
        bias: whether the last layer has one.
        last_norm: whether a norm without affine parameters ends it. BatchNorm centres the features,
            so that cosine similarities use the whole sphere (Orchestra paper, section C.3).
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths[:-1]):
        layers += [nn.Linear(inputs, outputs, bias=False), norm(outputs), nn.ReLU(inplace=True)]
    layers.append(nn.Linear(widths[-2], widths[-1], bias=bias))
    if last_norm:
        layers.append(norm(widths[-1], affine=False))
    return Head(*layers)
