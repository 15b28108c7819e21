"""Classes spread unevenly: the balanced Dirichlet split of the Orchestra paper."""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from orchestra_flwr.config import Section
from orchestra_flwr.data.partitions import Indices, Partition

Shares = NDArray[np.float64]

BALANCING_STEPS = 100  # even: the scale alternates, and is right after an even number of steps
EVEN_ALPHA = 1e9  # a draw is even to the last image from here on; larger values overflow
HELD_SHARE = 0.01  # of a client's images: what the paper's Table 4 counts as holding a class


class Dirichlet(Partition):
    """Clients of nearly equal size, each class spread by a Dirichlet draw over the clients.

    Section 6 and Table 4 of the Orchestra paper (https://arxiv.org/abs/2205.11506).
    """

    class Settings(Section):
        alpha: float = Field(0.1, gt=0)  # the smaller, the fewer classes a client holds

    def split(self, labels: Tensor | None, count: int, clients: int, seed: int) -> list[Indices]:
        """Cuts every class into runs in the order of its images; seed 0 is the published split."""
        assert labels is not None  # needs_labels
        of_images = labels.cpu().numpy()
        classes, sizes = np.unique(of_images, return_counts=True)
        shares = _balanced_shares(
            len(classes), clients, self.settings.alpha, seed, sizes / sizes.sum()
        )
        quotas = _whole_quotas(shares, sizes)
        pieces: list[list[Indices]] = [[] for _ in range(clients)]
        for label, row in zip(classes, quotas, strict=True):
            images = np.flatnonzero(of_images == label)
            for client, piece in enumerate(np.split(images, np.cumsum(row)[:-1])):
                pieces[client].append(piece)
        return _fill_empty([np.sort(np.concatenate(client)) for client in pieces])


def _balanced_shares(
    classes: int, clients: int, alpha: float, seed: int, class_shares: Shares
) -> Shares:
    """Each client's share of all images, by class: (classes, clients), columns nearly equal.

    A Dirichlet draw over the clients for each class, then a simultaneous scaling of columns to
    equal clients and of rows to the classes' sizes. As published, the generator is numpy's legacy
    one, and both sums are taken before either division.
    """
    random = np.random.RandomState(seed % 2**32)
    shares = random.dirichlet([min(alpha, EVEN_ALPHA)] * clients, size=classes)
    # A tiny alpha gives zero or infinite shares; in the limit one client has the whole class.
    for row in np.flatnonzero(~(np.isfinite(sums := shares.sum(axis=1)) & (sums > 0))):
        shares[row] = np.eye(clients)[random.randint(clients)]
    shares /= shares.sum()
    for _ in range(BALANCING_STEPS):
        columns = shares.sum(axis=0, keepdims=True) * clients
        rows = shares.sum(axis=1, keepdims=True) / class_shares[:, None]
        shares = _divide(_divide(shares, columns), rows)
    return shares


def _divide(shares: Shares, scale: Shares) -> Shares:
    """`shares / scale`; a client or class without any share keeps none."""
    quotient: Shares = np.divide(shares, scale, out=np.zeros_like(shares), where=scale > 0)
    return quotient


def _whole_quotas(shares: Shares, sizes: Indices) -> Indices:
    """Whole images by class and client, (classes, clients); the rows sum to `sizes`.

    The published code rounds down and loses the rest. Here the rest of a class goes to clients
    that hold the class anyway, so that the split stays as skewed as it was drawn.
    """
    quotas = _rounded_down(shares, sizes)
    taken = quotas.sum(axis=0)
    rest = sizes - quotas.sum(axis=1)
    takers = [
        _takers(row, share, sizes.sum() / len(taken))
        for row, share in zip(quotas, shares, strict=True)
    ]
    while rest.any():
        for row in np.flatnonzero(rest):
            client = takers[row][np.argmin(taken[takers[row]])]
            quotas[row, client] += 1
            taken[client] += 1
            rest[row] -= 1
    return quotas


def _rounded_down(shares: Shares, sizes: Indices) -> Indices:
    """The published quotas: shares of all images, rounded down, at most the class's size."""
    quotas: Indices = np.floor(shares * sizes.sum()).astype(np.int64)
    for row in np.flatnonzero(quotas.sum(axis=1) > sizes):  # scaling has not settled
        quotas[row] = np.floor(shares[row] / shares[row].sum() * sizes[row])
    return quotas


def _takers(row: Indices, share: Shares, mean_size: float) -> Indices:
    """The clients that may take what rounding left of a class: its holders, or else likely ones."""
    for least in (max(1, np.ceil(HELD_SHARE * mean_size)), 1):
        if (row >= least).any():
            return np.flatnonzero(row >= least)
    # The mean of equal shares may be a little more than each of them.
    return np.flatnonzero(share >= min(share.mean(), share.max()))


def _fill_empty(parts: list[Indices]) -> list[Indices]:
    """Gives each client without images the last image of the largest client."""
    for client, part in enumerate(parts):
        if len(part) == 0:
            largest = int(np.argmax([len(other) for other in parts]))
            parts[client], parts[largest] = parts[largest][-1:], parts[largest][:-1]
    return parts
