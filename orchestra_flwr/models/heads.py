"""Projectors and predictors: the heads between a backbone and a method's loss."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from orchestra_flwr.models.norm_layers import NormName, head_norm


def mlp(
    *widths: int,
    norm: NormName,
    bias: bool = False,
    last_norm: bool = True,
    statistics: bool = False,
) -> nn.Sequential:
    """Linear layers with a norm and ReLU between them: (B, widths[0]) to (B, widths[-1]).

    The hidden layers have no biases, which their norm would take off again.

    Args:
        widths: of the input, of every hidden layer and of the output.
        norm: `model.norm`.
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
            head_norm(norm, outputs, statistics=statistics),
            nn.ReLU(inplace=True),
        ]
    layers.append(nn.Linear(widths[-2], widths[-1], bias=bias))
    if last_norm:
        layers.append(head_norm(norm, widths[-1], affine=False, statistics=statistics))
    return nn.Sequential(*layers)
