"""The order in which a client goes through its images."""

from __future__ import annotations

import torch
from torch import Tensor


def epoch_batches(
    count: int, batch_size: int, generator: torch.Generator, *, drop_last: bool = False
) -> list[Tensor]:
    """One shuffled pass over `count` images.

    Batch normalisation needs two images: a last batch of one image joins the batch before it, and
    a client's only image is seen twice in its one batch.

    Args:
        count: number of images, at least 1.
        batch_size: images a batch, at least 2; the last batch may be smaller, or larger by one.
        generator: draws the order; the batches lie on its device.
        drop_last: whether a last batch that is not full is left out. The only batch stays: a
            client with fewer images than a batch trains on those.

    Returns:
        Index tensors, int64, which hold every index below `count` once, or fewer with `drop_last`.

    Raises:
        ValueError: no images, or a batch size below 2.
    """
    if count < 1 or batch_size < 2:
        raise ValueError(f"count={count}, batch_size={batch_size}: at least 1 and 2 are needed")
    if count == 1:
        return [torch.zeros(2, dtype=torch.int64, device=generator.device)]
    order = torch.randperm(count, generator=generator, device=generator.device)
    batches = list(torch.split(order, batch_size))
    if drop_last and len(batches) > 1 and len(batches[-1]) < batch_size:
        return batches[:-1]
    if len(batches[-1]) == 1 and len(batches) > 1:
        batches[-2:] = [order[-batch_size - 1 :]]
    return batches
