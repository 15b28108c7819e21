"""A step replayed as a CUDA graph: one launch in place of a thousand."""

import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_ONE_CAPTURE = threading.Lock()  # torch's default generator takes part in all, in one at a time
_OF_THREAD = threading.local()


class CapturedStep:
    """Runs a step on a GPU: its first calls eagerly, later ones as a captured graph.

    Launching the kernels of a small batch takes longer than running them. Each size of batch has a
    graph of its own; a client's batches have at most two sizes. The first batch of a size runs
    eagerly: libraries choose their algorithms in it, and buffers are made.

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
        self._taken: set[int] = set()
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def __call__(self, rows: Tensor) -> None:
        """One step on these rows."""
        size = len(rows)
        with torch.cuda.device(rows.device):  # streams and captures are the current GPU's
            if size not in self._taken:
                self._taken.add(size)
                self._step(rows)
                return
            if size not in self._graphs:
                self._graphs[size] = self._capture(rows.clone())
            graph, captured_rows = self._graphs[size]
            captured_rows.copy_(rows)
            graph.replay()

    def _capture(self, rows: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        _recorder(rows.device).record(graph, lambda: self._step(rows))
        return graph, rows


class _Recorder:
    """Records a thread's graphs, which are captured and replayed one at a time.

    They share one memory pool. With pools of their own, each would wait for the driver to allocate.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._memory = torch.cuda.graph_pool_handle()
        self._keeper = torch.cuda.CUDAGraph()  # torch forgets a pool that no graph uses
        self.record(self._keeper, lambda: torch.zeros(1, device=device))

    def record(self, graph: torch.cuda.CUDAGraph, work: Callable[[], object]) -> None:
        """Captures in a graph what `work` does on the current GPU."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        # Not by `torch.cuda.graph`, which waits for the whole GPU and gives its free memory back:
        # clients in other threads would stand still.
        with _ONE_CAPTURE, torch.cuda.stream(self._stream):
            graph.capture_begin(self._memory, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        current.wait_stream(self._stream)


def _recorder(device: torch.device) -> _Recorder:
    """This thread's recorder for a device."""
    recorders: dict[torch.device, _Recorder] = _OF_THREAD.__dict__.setdefault("recorders", {})
    if device not in recorders:
        recorders[device] = _Recorder(device)
    return recorders[device]
