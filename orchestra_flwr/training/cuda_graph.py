"""A step replayed as a CUDA graph: one launch in place of a thousand."""

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

WARM_UP = 3  # plain calls, in which libraries choose their algorithms and buffers are made


class CapturedStep:
    """Runs a step on a GPU: its first calls plainly, later ones as a captured graph.

    Launching the kernels of a small batch takes longer than running them. Each size of batch has a
    graph of its own; a client's batches have at most two sizes.

    Args:
        step: takes the (B,) rows of a batch. Its kernels depend on B alone, not on values, and it
            changes its state in place.
        generators: all that the step draws from.
    """

    def __init__(
        self, step: Callable[[Tensor], None], generators: Sequence[torch.Generator]
    ) -> None:
        self._step = step
        self._generators = generators
        self._calls: Counter[int] = Counter()
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def __call__(self, rows: Tensor) -> None:
        """One step on these rows."""
        size = len(rows)
        self._calls[size] += 1
        with torch.cuda.device(rows.device):  # streams and captures are the current GPU's
            if self._calls[size] <= WARM_UP:
                self._run_on_side_stream(rows)
                return
            if size not in self._graphs:
                self._graphs[size] = self._capture(rows.clone())
            graph, captured_rows = self._graphs[size]
            captured_rows.copy_(rows)
            graph.replay()

    def _run_on_side_stream(self, rows: Tensor) -> None:
        # Capturing demands that earlier calls ran on another stream.
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with torch.cuda.stream(side):
            self._step(rows)
        current.wait_stream(side)

    def _capture(self, rows: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            self._step(rows)
        return graph, rows
