"""Several clients of one process that train side by side: their steps are taken as one.

A step of a small batch leaves a GPU idle. Here the models of some clients are stacked along a first
axis, and `torch.func.vmap` makes one step of theirs: the same numbers as one after another, but for
the order of additions.

Each client's work runs in a thread of its own, one at any moment. Where it needs gradients it waits
until all others wait too or have ended; then passes with batches of equal shapes are run as one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from orchestra_flwr.config import Precision
from orchestra_flwr.methods import Batch
from orchestra_flwr.models.precision import passes_in
from orchestra_flwr.models.stacked import stacked_clients
from orchestra_flwr.training.learner import Learner

T = TypeVar("T")
Measured = tuple[dict[str, Tensor], dict[str, Tensor]]
_CURRENT_CLIENT: ContextVar[_Client[Any] | None] = ContextVar("client", default=None)


@dataclass(frozen=True)
class TrainingPass:
    """Forward and backward pass of one step of one client.

    Attributes:
        learner: whose trained parameters get gradients.
        batch: of the step.
        precision: of the pass.
        measured: whether measures are made as well.
    """

    learner: Learner
    batch: Batch
    precision: Precision
    measured: bool

    def run(self) -> Measured:
        """Makes the gradients, with other waiting clients' where possible.

        Returns:
            Losses and measures, see :meth:`Learner.measured_loss`.
        """
        client = _CURRENT_CLIENT.get()
        return self.run_alone() if client is None else client.wait_for(self)

    def run_alone(self) -> Measured:
        """Makes the gradients of this client alone."""
        with passes_in(self.precision, self.batch.images.device.type):
            losses, measures = self.learner.measured_loss(self.batch, measured=self.measured)
        torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
        return losses, measures

    @property
    def signature(self) -> tuple[object, ...]:
        """Passes with equal signatures can be run as one."""
        rotations = tuple(r is None for r in self.batch.rotations)
        shapes = tuple(view.shape for view in self.batch.views)
        return shapes, rotations, self.batch.labels is None, self.measured


def side_by_side(works: Sequence[Callable[[], T]]) -> list[T]:
    """Runs functions that each train a client; returns their results in order.

    Raises:
        Exception: the first error of any of them.
    """
    if len(works) == 1:
        return [works[0]()]
    clients = [_Client(work) for work in works]
    stack = _Stack()
    try:
        running = clients
        while running:
            for client in running:
                client.resume()
            running = [client for client in running if client.training_pass is not None]
            _run_waiting(running, stack)
    finally:
        for client in clients:
            client.cancel()
    return [client.result() for client in clients]


def _run_waiting(clients: Sequence[_Client[Any]], stack: _Stack) -> None:
    """Runs the passes of waiting clients; those with equal signatures as one."""
    groups: dict[tuple[object, ...], list[_Client[Any]]] = {}
    for client in clients:
        assert client.training_pass is not None
        groups.setdefault(client.training_pass.signature, []).append(client)
    for group in groups.values():
        passes = [client.training_pass for client in group if client.training_pass is not None]
        try:
            measured = [passes[0].run_alone()] if len(passes) == 1 else stack.run(passes)
        except Exception as error:  # such as too little memory: an error of these clients
            for client in group:
                client.measured = error
        else:
            for client, result in zip(group, measured, strict=True):
                client.measured = result


class _CancelledError(BaseException):
    """Ends the thread of a client when another one was interrupted."""


class _Client(Generic[T]):
    """One client's work, in a thread that only runs when it is resumed.

    Attributes:
        training_pass: that it waits for; None where it has ended.
        measured: the result of that pass, or its error.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self.training_pass: TrainingPass | None = None
        self.measured: Measured | Exception | None = None
        self._work = work
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._cancelled = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def resume(self) -> None:
        """Runs it until it waits for gradients or has ended."""
        self._turn.release()
        self._back.acquire()

    def wait_for(self, training_pass: TrainingPass) -> Measured:
        """Called in its thread: waits for the result of a pass.

        Raises:
            Exception: the error of the pass.
        """
        self.training_pass = training_pass
        self._back.release()
        self._turn.acquire()
        self.training_pass = None
        if self._cancelled:
            raise _CancelledError
        if isinstance(self.measured, Exception):
            raise self.measured
        assert self.measured is not None
        return self.measured

    def cancel(self) -> None:
        """Ends its thread, if it has not ended."""
        self._cancelled = True
        self._turn.release()
        self._thread.join()

    def result(self) -> T:
        """What the work returned; raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._result[0]

    def _run(self) -> None:
        self._turn.acquire()
        _CURRENT_CLIENT.set(self)
        try:
            if not self._cancelled:
                self._result.append(self._work())
        except BaseException as error:
            self._error = error
        finally:
            self._back.release()


class _Loss(nn.Module):
    """A learner's measured loss, as a module's call, which `functional_call` needs."""

    def __init__(self, learner: Learner, measured: bool) -> None:
        super().__init__()
        self.learner = learner
        self.measured = measured

    def forward(self, batch: Batch) -> Measured:
        return self.learner.measured_loss(batch, measured=self.measured)


class _Stack:
    """The tensors of some clients' learners, stacked; the learners' own become views of them.

    So an update of a client's parameters is one of the stack's, and nothing is copied from step to
    step as long as the same clients train.
    """

    def __init__(self) -> None:
        self._learners: list[Learner] = []
        self._tensors: dict[str, Tensor] = {}

    def run(self, passes: Sequence[TrainingPass]) -> list[Measured]:
        """Runs one step's passes of all clients under vmap."""
        learners = [p.learner for p in passes]
        if learners != self._learners:  # modules are equal to themselves alone
            self._stack(learners)
        loss, count = _Loss(learners[0], passes[0].measured), len(passes)
        batches = [p.batch for p in passes]
        with passes_in(passes[0].precision, batches[0].images.device.type), stacked_clients():
            losses, measures = vmap(
                lambda state, batch: functional_call(loss, state, (_batch(batch, batches[0]),)),
                randomness="error",
            )(self._tensors, _tensors(batches))
        torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
        for name, whole in self._tensors.items():
            if whole.grad is not None:
                for learner, gradient in zip(learners, whole.grad, strict=True):
                    learner.get_parameter(name.removeprefix("learner.")).grad = gradient
                whole.grad = None
        return [(_of(losses, i), _of(measures, i)) for i in range(count)]

    def _stack(self, learners: list[Learner]) -> None:
        self._learners, self._tensors = learners, {}
        states = [
            {**dict(learner.named_parameters()), **dict(learner.named_buffers())}
            for learner in learners
        ]
        for name, first in states[0].items():
            whole = torch.stack([state[name].detach() for state in states])
            for state, part in zip(states, whole, strict=True):
                state[name].data = part
            self._tensors["learner." + name] = whole.requires_grad_(first.requires_grad)


def _tensors(batches: Sequence[Batch]) -> dict[str, Any]:
    """The tensors of batches with equal signatures, stacked."""
    first = batches[0]
    stacked: dict[str, Any] = {
        "images": torch.stack([b.images for b in batches]),
        "views": [torch.stack(views) for views in zip(*(b.views for b in batches), strict=True)],
        "rotations": {
            k: torch.stack([b.rotations[k] for b in batches])  # type: ignore[misc]
            for k, rotation in enumerate(first.rotations)
            if rotation is not None
        },
    }
    if first.labels is not None:
        stacked["labels"] = torch.stack([b.labels for b in batches])  # type: ignore[misc]
    return stacked


def _batch(tensors: Mapping[str, Any], like: Batch) -> Batch:
    rotations = tuple(tensors["rotations"].get(k) for k in range(len(like.rotations)))
    views, labels = tuple(tensors["views"]), tensors.get("labels")
    return Batch(tensors["images"], views, rotations, like.generator, labels)


def _of(values: Mapping[str, Tensor], client: int) -> dict[str, Tensor]:
    return {name: value[client].detach() for name, value in values.items()}
