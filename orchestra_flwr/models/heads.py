"""Projectors: the heads between a backbone and a method's loss."""

from __future__ import annotations

from torch import nn


def projector(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Orchestra's two-layer projector: Linear-BN-ReLU-Linear-BN, no biases, last BN not affine.

    Maps (B, inputs) to (B, outputs). The last BatchNorm centres the features, so that cosine
    similarities use the whole sphere (Orchestra paper, section C.3).
    """
    return nn.Sequential(
        nn.Linear(inputs, hidden, bias=False),
        nn.BatchNorm1d(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, outputs, bias=False),
        nn.BatchNorm1d(outputs, affine=False),
    )
