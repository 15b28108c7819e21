"""A step replayed as a CUDA graph: one launch in place of a thousand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

WARM_UP = 3  # plain calls, in which libraries choose their algorithms and buffers are made


class CapturedStep:
    """Runs a step on a GPU: its first calls plainly, all later ones as a captured graph.

    A step of small batches keeps a GPU busy for less time than the processor takes to launch it.

    Args:
        step: takes the (B,) rows of a batch. What it does depends on B alone: shapes and decisions
            do not depend on values, and what it leaves behind it changes in place.
        batch_size: the B that is captured; batches of other sizes always run plainly.
        device: a GPU.
        generators: all that the step draws from.
    """

    def __init__(
        self,
        step: Callable[[Tensor], None],
        batch_size: int,
        device: torch.device,
        generators: Sequence[torch.Generator],
    ) -> None:
        self._step = step
        self._rows = torch.zeros(batch_size, dtype=torch.long, device=device)
        self._generators = generators
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, rows: Tensor) -> None:
        """One step on these rows."""
        if rows.shape != self._rows.shape:
            self._step(rows)
            return
        self._calls += 1
        with torch.cuda.device(rows.device):  # streams and captures are the current GPU's
            if self._calls <= WARM_UP:
                self._plainly(rows)
                return
            self._rows.copy_(rows)
            if self._graph is None:
                self._graph = self._captured()
            self._graph.replay()

    def _plainly(self, rows: Tensor) -> None:
        # On another stream, as capturing demands of all that came before it.
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with torch.cuda.stream(side):
            self._step(rows)
        current.wait_stream(side)

    def _captured(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            self._step(self._rows)
        return graph
