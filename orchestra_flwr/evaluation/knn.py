"""Weighted k-nearest-neighbour accuracy of frozen features."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from orchestra_flwr.evaluation.features import check_labelled

SIMILARITIES_AT_ONCE = 2**25  # 128 MiB of float32; larger blocks are not faster
BANK_SHARE = 10  # at most a tenth of the bank votes: if all of it did, all votes would be alike


def voters(k: int, bank: int) -> int:
    """How many neighbours vote: k, at most a tenth of the bank's features, at least one."""
    return min(k, max(1, bank // BANK_SHARE))


def fewer_voters(k: int, bank: int) -> str | None:
    """A warning where fewer than k neighbours vote; None where k do."""
    votes = voters(k, bank)
    if votes == k:
        return None
    return (
        f"evaluation.knn_k={k}: only {votes} of the {bank:,} training images vote on a test image, "
        "a tenth of them"
    )


@torch.no_grad()
def knn_accuracy(
    bank: Tensor,
    bank_labels: Tensor,
    queries: Tensor,
    query_labels: Tensor,
    *,
    k: int = 200,
    temperature: float = 0.1,
) -> float:
    """Fraction of the queries whose neighbours in the bank vote for the right class.

    Each of the k bank features with the largest cosine to the query votes for its class with
    weight exp(cosine / temperature). With k as large as the bank, the whole bank votes. A feature
    of norm zero has cosine 0 to everything. Of classes with equal votes, one is chosen.

    Args:
        bank: (N, dim) features, finite, of any norm.
        bank_labels: (N,) classes from 0.
        queries: (M, dim) features on the bank's device.
        query_labels: (M,) classes from 0.
        k: neighbours that vote.
        temperature: the smaller, the more the nearest neighbours count.

    Raises:
        ValueError: shapes do not fit, or a feature is not finite.

    Source:
        Wu et al., Unsupervised feature learning via non-parametric instance discrimination, 2018.
    """
    check_labelled("kNN bank", bank, bank_labels)
    check_labelled("kNN queries", queries, query_labels)
    bank_labels, query_labels = bank_labels.to(bank.device), query_labels.to(bank.device)
    bank, queries = normalize(bank.float(), dim=1), normalize(queries.float(), dim=1)
    classes = int(bank_labels.max()) + 1
    rows = max(1, SIMILARITIES_AT_ONCE // len(bank))
    hits = torch.zeros((), dtype=torch.int64, device=bank.device)
    buffer = bank.new_empty(min(rows, len(queries)), len(bank))  # fresh pages cost a tenth more
    for block, labels in zip(
        torch.split(queries, rows), torch.split(query_labels, rows), strict=True
    ):
        similarities = torch.mm(block, bank.T, out=buffer[: len(block)])
        cosines, neighbours = similarities.topk(min(k, len(bank)), dim=1)
        # Relative to the nearest neighbour: the same vote, and no overflow at low temperatures.
        weights = ((cosines - cosines[:, :1]) / temperature).exp()
        votes = weights.new_zeros(len(block), classes)
        votes.scatter_add_(1, bank_labels[neighbours], weights)
        hits += (votes.argmax(1) == labels).sum()
    return int(hits) / len(queries)
