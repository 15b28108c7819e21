"""A client's own model or head, evaluated on the classes that the client holds."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from orchestra_flwr.data import UNLABELLED
from orchestra_flwr.evaluation.linear_probe import fit_linear_probe
from orchestra_flwr.models import extract_features


@dataclass(frozen=True)
class OwnClasses:
    """The images and labels on which one client's own model is evaluated.

    Attributes:
        train: images (N, C, H, W) uint8 and their classes (N,), of all clients; a probe is fitted
            to them, so that models of clients with few images or classes can be compared.
        test: test images and their classes.
        targets: (M,) classes of the test images as the method numbers them; None where it learns
            none.
        held: (n,) classes of the client's own training images.
        penalty: of the probes; None: each is chosen by cross-validation.
        few: some of the client's own images (m, C, H, W) uint8 and their classes (m,), for a head
            of its own; None: no such head.
    """

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    targets: Tensor | None
    held: Tensor
    few: tuple[Tensor, Tensor] | None = None
    penalty: float | None = None

    def scores(
        self, encoder: nn.Module, head: nn.Module | None, batch_size: int
    ) -> dict[str, float]:
        """`linear` of a linear probe and, with a classification head, `accuracy` of that.

        With `few` also `personal`: of a linear probe fitted to these images alone, the head of a
        client that labels a handful of its images. All are fractions of the test images, each class
        counting as much as among the client's own images.

        Args:
            encoder: the client's, maps images to features (B, dim).
            head: makes logits (B, K) of features; None: the method has no classes.
        """
        bank = extract_features(encoder, self.train[0], batch_size)
        queries = extract_features(encoder, self.test[0], batch_size)
        labels = self.test[1].to(queries.device)
        probe = fit_linear_probe(bank, self.train[1], self.penalty)
        scores = {"linear": self._weighted(probe.predict(queries) == labels)}
        if self.few is not None:
            images, classes = self.few
            features = extract_features(encoder, images, batch_size)
            personal = fit_linear_probe(features, classes, self.penalty)
            scores["personal"] = self._weighted(personal.predict(queries) == labels)
        if head is not None:
            assert self.targets is not None
            with torch.inference_mode():
                predicted = head(queries).argmax(1)
            scores["accuracy"] = self._weighted(predicted == self.targets.to(predicted.device))
        return scores

    def _weighted(self, right: Tensor) -> float:
        return weighted_accuracy(right.cpu(), self.test[1].cpu(), self.held.cpu())


def personal_accuracy(
    encoder: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    count: int,
    generator: torch.Generator,
    batch_size: int,
    penalty: float | None = None,
) -> float | None:
    """Accuracy of a head fitted to a few of a client's labels, on its other labelled images.

    Args:
        images: the client's own (n, C, H, W) uint8.
        labels: (n,) their classes, UNLABELLED where an image has none.
        count: how many are drawn to fit the linear probe.
        generator: draws them; on the CPU.
        penalty: of the probe; None: it is chosen by cross-validation.

    Returns:
        A fraction; None: no more than `count` images have a label, so none is left to evaluate on.
    """
    labelled = (labels != UNLABELLED).nonzero().squeeze(1).cpu()
    if len(labelled) <= count:
        return None
    drawn = labelled[torch.randperm(len(labelled), generator=generator)].to(images.device)
    features = extract_features(encoder, images[drawn], batch_size)
    classes = labels[drawn].to(features.device)
    probe = fit_linear_probe(features[:count], classes[:count], penalty)
    return probe.accuracy(features[count:], classes[count:])


def weighted_accuracy(right: Tensor, labels: Tensor, held: Tensor) -> float:
    """Accuracy with the class shares of a client.

    Args:
        right: (M,) bool, of the test images.
        labels: (M,) their classes.
        held: (n,) classes of the client's images; those without a test image do not count.

    Raises:
        ValueError: no test image is of a class that the client holds.
    """
    total, weight = 0.0, 0
    for label, count in zip(*torch.unique(held, return_counts=True), strict=True):
        chosen = right[labels == label]
        if len(chosen):
            total += int(count) * float(chosen.double().mean())
            weight += int(count)
    if not weight:
        raise ValueError("there is no test image of any class that the client holds")
    return total / weight


def spread_over_clients(scores: Sequence[float]) -> dict[str, Any]:
    """How scores are spread over the clients.

    Returns:
        `mean`, `worst_tenth` (mean of the lowest tenth, at least one), `std` (deviation between
        clients; 0 for one) and `clients` (how many).
    """
    ordered = sorted(scores)
    lowest = ordered[: max(1, len(ordered) // 10)]
    return {
        "mean": sum(ordered) / len(ordered),
        "worst_tenth": sum(lowest) / len(lowest),
        "std": statistics.pstdev(ordered),
        "clients": len(ordered),
    }
