"""Projectors and predictors: the heads between a backbone and a method's loss."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from orchestra_flwr.config import ModelConfig
from orchestra_flwr.models.norm_layers import NormName, head_norm
from orchestra_flwr.models.precision import network_pass


class Head(nn.Sequential):
    """Layers, one after the other, that compute in the precision that is asked for."""

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
        model: `projector` chooses between the method's own head, which the other arguments
            describe as :func:`mlp` has them, and a :func:`plain_head`, whose norm "plain_norm" asks
            for whatever the method; `projector_hidden` is the
            width of all hidden layers instead of the method's own widths.
        inputs: width of the features that it is given.
        hidden: the method's own widths of the hidden layers, at least one.
        bias: as for :func:`mlp`.
        last_norm: as for :func:`mlp`.
        statistics: as for :func:`mlp`.
        plain_norm: whether the plain head has a norm as well, as methods need that collapse
            without one.
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
        inputs: width of the features that it is given.
        hidden: width of the hidden layer.
        outputs: width of what it makes.
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
        statistics: whether BatchNorm keeps running statistics: only where somebody reads them, that
            is, uses the head in evaluation mode.
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
