"""Losses for images of which some have labels.

"A Mutual Information Perspective on Federated Contrastive Learning", ICLR 2024 (arXiv 2405.02081),
Algorithm 2. A loss L_u without labels compares images of one client. With labels it compares
unlabelled images with each other and images of one class with each other, and a classifier is
trained on both views:

    L = L_u(unlabelled) + sum over classes c of L_u(images of c) + CE(view 1) + CE(view 2).

Each L_u is a mean over its own images; the sum is over the classes in the batch, without weights.
Images are left out by a weight of 0: shapes do not depend on labels, so a step can be captured as a
CUDA graph.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orchestra_flwr.data import UNLABELLED


@dataclass(frozen=True)
class Group:
    """The unlabelled images of a batch, or the images of all its classes, as tensors of a loss.

    Images are compared within one class. Weights turn the mean over the batch into the sum of the
    means over unlabelled images, or over each class.
    """

    candidates: Tensor | None = None  # (B, B) bool, which images are compared; None: with all
    weights: Tensor | None = None  # (B,) of the images; None: 1 each
    # (B, B) of pairs of two different images, 0 on the diagonal; None: 1 each
    pair_weights: Tensor | None = None


WHOLE_BATCH = Group()


def groups_of(labels: Tensor) -> tuple[Group, Group]:
    """The unlabelled images of a batch, and its classes.

    Args:
        labels: (B,), UNLABELLED where there is none.
    """
    count = len(labels)
    same = labels[:, None] == labels
    sizes = same.sum(1).float()
    images = count / sizes
    pairs = count * (count - 1) / (sizes * (sizes - 1)).clamp(min=1)
    itself = torch.eye(count, dtype=torch.bool, device=labels.device)
    compared = same & ~itself
    unlabelled = labels == UNLABELLED

    def group(chosen: Tensor) -> Group:
        return Group(same, images * chosen, pairs[:, None] * (compared & chosen))

    return group(unlabelled), group(~unlabelled)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Scalar mean of the (B,) values that a (B,) mask chooses; 0 if it chooses none."""
    return (values * (mask * (len(values) / mask.sum().clamp(min=1)))).mean()


def label_loss(
    classifier: nn.Module, views: Sequence[Tensor], labels: Tensor, mask: Tensor
) -> Tensor:
    """Cross-entropy of the class, averaged over the chosen images and summed over the views.

    Args:
        classifier: makes (B, K) logits of (B, dim) features.
        views: features of each view.
        labels: (B,); read only where they are chosen.
        mask: (B,), which images are chosen; if none is, the loss and all gradients are 0.
    """
    targets = labels.where(mask, torch.zeros_like(labels))
    entropies = [F.cross_entropy(classifier(view), targets, reduction="none") for view in views]
    return torch.stack([masked_mean(entropy, mask) for entropy in entropies]).sum()


def losses_with_labels(
    name: str,
    loss: Callable[[Group], Tensor],
    classifier: nn.Module | None,
    views: Sequence[Tensor],
    labels: Tensor | None,
) -> dict[str, Tensor]:
    """The named parts of a loss without labels, and those that labels add.

    Args:
        loss: the method's own, of some of the batch's images.
        classifier: of the backbone's features; None: there are no labels.
        views: (B, dim) features of the backbone for each view.
        labels: (B,), UNLABELLED where there is none.
    """
    if classifier is None or labels is None:
        return {name: loss(WHOLE_BATCH)}
    unlabelled, classes = groups_of(labels)
    return {
        name: loss(unlabelled),
        f"{name}_class": loss(classes),
        "classification": label_loss(classifier, views, labels, labels != UNLABELLED),
    }
