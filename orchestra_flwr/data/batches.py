"""The order in which a client goes through its images."""

import math

import torch
from torch import Tensor

from orchestra_flwr.config import TrainingConfig


def batch_sizes(count: int, batch_size: int, *, drop_last: bool = False) -> list[int]:
    """How many images each batch of an epoch holds, in order.

    round(count / batch_size) batches, whose sizes differ by one at most. A small last batch would
    train BatchNorm on a handful of images, which costs an encoder up to ten points of accuracy
    (`docs/training.md`). BatchNorm needs two images: a client's only image is in its batch twice.

    Args:
        count: number of images, at least 1.
        batch_size: images a batch, at least 2; batches have between 2/3 and 3/2 of it, or all
            images if there are fewer.
        drop_last: whether all batches have `batch_size` images and the rest is left out, as in
            published code; a client with fewer images still has one batch.

    Raises:
        ValueError: no images, or a batch size below 2.
    """
    if count < 1 or batch_size < 2:
        raise ValueError(f"count={count}, batch_size={batch_size}: at least 1 and 2 are needed")
    if count == 1:
        return [2]
    if drop_last:
        return [batch_size] * (count // batch_size) or [count]
    batches = max(1, min((2 * count + batch_size) // (2 * batch_size), count // 2))
    size, more = divmod(count, batches)
    return [size + 1] * more + [size] * (batches - more)


def local_epochs(training: TrainingConfig, count: int) -> int:
    """Epochs of a client's round: `local_epochs`, or more if `min_steps` takes more.

    Args:
        count: number of the client's images, at least 1.
    """
    steps = len(batch_sizes(count, training.batch_size, drop_last=training.drop_last))
    return max(training.local_epochs, math.ceil(training.min_steps / steps))


def epoch_batches(
    count: int, batch_size: int, generator: torch.Generator, *, drop_last: bool = False
) -> list[Tensor]:
    """One shuffled pass over `count` images: :func:`batch_sizes` has the arguments and errors.

    Args:
        generator: draws the order; the batches lie on its device.

    Returns:
        Index tensors, int64, which hold every index below `count` once, or fewer with `drop_last`.
    """
    sizes = batch_sizes(count, batch_size, drop_last=drop_last)
    if count == 1:
        return [torch.zeros(2, dtype=torch.int64, device=generator.device)]
    order = torch.randperm(count, generator=generator, device=generator.device)
    return list(torch.split(order[: sum(sizes)], sizes))
