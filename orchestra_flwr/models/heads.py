"""Projectors and predictors: the heads between a backbone and a method's loss."""

from __future__ import annotations

from itertools import pairwise

from torch import nn


def mlp(*widths: int, bias: bool = False, norm: bool = True) -> nn.Sequential:
    """Linear layers with BatchNorm and ReLU between them: (B, widths[0]) to (B, widths[-1]).

    The hidden layers have no biases, which their BatchNorm would take off again.

    Args:
        widths: of the input, of every hidden layer and of the output.
        bias: whether the last layer has one.
        norm: whether a BatchNorm without affine parameters ends it. It centres the features, so
            that cosine similarities use the whole sphere (Orchestra paper, section C.3).
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths[:-1]):
        layers += [
            nn.Linear(inputs, outputs, bias=False),
            nn.BatchNorm1d(outputs),
            nn.ReLU(inplace=True),
        ]
    layers.append(nn.Linear(widths[-2], widths[-1], bias=bias))
    if norm:
        layers.append(nn.BatchNorm1d(widths[-1], affine=False))
    return nn.Sequential(*layers)
