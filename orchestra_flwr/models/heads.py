"""Projectors and predictors: the heads between a backbone and a method's loss."""

from itertools import pairwise

from torch import Tensor, nn

from orchestra_flwr.config import ModelConfig
from orchestra_flwr.models.norm_layers import NormName, head_norm
from orchestra_flwr.models.precision import network_pass


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
        inputs: width of the input.
        hidden: the method's own widths of the hidden layers, at least one.
        bias, last_norm, statistics: as for :func:`mlp`.
        plain_norm: whether a plain head has a norm, for methods that collapse without one.
    """
    if model.projector_hidden is not None:
        hidden = (model.projector_hidden,) * len(hidden)
    if model.projector != "orchestra":
        norm = model.norm if plain_norm or model.projector == "plain_norm" else None
        return plain_head(
            inputs,
            hidden[0],
            model.projector_dim,
            norm=norm,
            groups=model.groups,
            statistics=statistics,
        )
    return mlp(
        inputs,
        *hidden,
        model.projector_dim,
        norm=model.norm,
        groups=model.groups,
        bias=bias,
        last_norm=last_norm,
        statistics=statistics,
    )


def plain_head(
    inputs: int,
    hidden: int,
    outputs: int,
    *,
    norm: NormName | None = None,
    groups: int | None = None,
    statistics: bool = False,
) -> Head:
    """Linear, ReLU, Linear, both with biases: (B, inputs) to (B, outputs).

    That of "A Mutual Information Perspective on Federated Contrastive Learning" (ICLR 2024), whose
    SimSiam has a norm before the ReLU as well.

    Args:
        inputs, hidden, outputs: widths of the layers.
        norm: `model.norm`, before the ReLU; None: none.
        groups: `model.groups`.
        statistics: as for :func:`mlp`.
    """
    layers: list[nn.Module] = [nn.Linear(inputs, hidden)]
    if norm is not None:
        layers.append(head_norm(norm, hidden, groups=groups, statistics=statistics))
    return Head(*layers, nn.ReLU(inplace=True), nn.Linear(hidden, outputs))


def mlp(
    *widths: int,
    norm: NormName,
    groups: int | None = None,
    bias: bool = False,
    last_norm: bool = True,
    statistics: bool = False,
) -> Head:
    """Linear layers with a norm and ReLU between them: (B, widths[0]) to (B, widths[-1]).

    The hidden layers have no biases, which their norm would take off again.

    Args:
        widths: of the input, of every hidden layer and of the output.
        norm: `model.norm`.
        groups: `model.groups`.
        bias: whether the last layer has one.
        last_norm: whether a norm without affine parameters ends it. BatchNorm centres the features,
            so that cosine similarities use the whole sphere (Orchestra paper, section C.3).
        statistics: whether BatchNorm keeps running statistics, for a head used in evaluation mode.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths[:-1]):
        layers += [
            nn.Linear(inputs, outputs, bias=False),
            head_norm(norm, outputs, groups=groups, statistics=statistics),
            nn.ReLU(inplace=True),
        ]
    layers.append(nn.Linear(widths[-2], widths[-1], bias=bias))
    if last_norm:
        layers.append(
            head_norm(norm, widths[-1], groups=groups, affine=False, statistics=statistics)
        )
    return Head(*layers)
