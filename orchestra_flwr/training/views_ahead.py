"""Batches on a GPU: the views of many are made at once."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from orchestra_flwr.methods import Batch
from orchestra_flwr.training.step import BatchMaker

MAX_BYTES = 1 << 25  # of views that are made at once; those of one batch may have more


def images_at_once(views: int, channels: int, side: int) -> int:
    """How many images get their float32 views, each `side` pixels high and wide, at once."""
    return MAX_BYTES // (4 * views * channels * side**2)


class ViewsAhead(BatchMaker):
    """Makes the views of several batches, of a small client's whole epoch, at once.

    Augmenting one batch takes hundreds of kernels, and augmenting many takes no more; a small
    kernel leaves a large GPU idle. Steps read their views from the same memory each time, as a
    captured step must.
    """

    _kept: Sequence[Tensor] = ()  # rows, views (n, H, W, C) and rotations, by place

    def in_steps(self, batches: Sequence[Tensor]) -> Iterator[Tensor]:
        """The (B,) places of each batch's images among those whose views are ready.

        Args:
            batches: no larger and no more numerous than those of the first call.
        """
        most = images_at_once(len(self._recipes), self._images.shape[1], self._view_size)
        count = max(1, most // len(batches[0]))  # the first batch is the largest
        for first in range(0, len(batches), count):
            together = batches[first : first + count]
            rows = torch.cat(list(together))
            self._keep(rows)
            places = torch.arange(len(rows), device=rows.device)
            yield from torch.split(places, [len(batch) for batch in together])

    def __call__(self, places: Tensor) -> Batch:
        """The batch at these places, the last ones that :meth:`in_steps` has yielded."""
        rows, *chosen = (kept.index_select(0, places) for kept in self._kept)
        views, turns = chosen[: len(self._recipes)], iter(chosen[len(self._recipes) :])
        rotations = tuple(next(turns) if recipe.rotate else None for recipe in self._recipes)
        return self._batch(rows, tuple(view.permute(0, 3, 1, 2) for view in views), rotations)

    def _keep(self, rows: Tensor) -> None:
        """Makes the views of the (n,) chosen images."""
        views = self._views(rows)
        # Channels last, as networks take them: a step need not copy them.
        images = [view.permute(0, 2, 3, 1) for view in views.images]
        made = [rows, *images, *(turns for turns in views.rotations if turns is not None)]
        if not self._kept:
            self._kept = [new.clone(memory_format=torch.contiguous_format) for new in made]
        for kept, new in zip(self._kept, made, strict=True):
            kept[: len(new)].copy_(new)
