"""The server's named models, and what each one's optimizer remembers."""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orchestra_flwr.config import Config
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.messages.fields import with_prefix
from orchestra_flwr.federation.messages.schema import Schemas, pack_state
from orchestra_flwr.federation.server_optimizers import ServerOptimizer
from orchestra_flwr.federation.vector_blocks import blocks_of
from orchestra_flwr.flower.arrays import all_finite
from orchestra_flwr.methods import Role
from orchestra_flwr.training import Learner

TRAVELLING = (Role.SHARED, Role.SERVER)
# Prefixes of tensors in a checkpoint: of all models but the first, of residuals and of moments; and
# what an error calls them if they do not fit.
MODELS, RESIDUALS, OPTIMIZER = "models/", "residuals/", "server_optimizer/"
KINDS = {
    MODELS: "other models",
    RESIDUALS: "the residuals of another federation.wire",
    OPTIMIZER: "the moments of another server optimizer",
}


class Models:
    """Named models of one kind: one is loaded in the learner, the others wait as flat arrays.

    Memory is that of the models and of their optimizers' moments; with one model nothing is copied.
    With a folder the shared states of those that wait are in an unnamed file, which is gone with
    the process; then memory is that of one model and of the moments.

    Where the wire has residuals, each model has one: what rounding took from it when it was last
    sent before it changed. It is added whenever the model is sent, so that over the rounds clients
    get the unrounded model on average. It takes as much memory as the model, in the same place.

    Args:
        learner: the server's; its state is that of the first model.
        names: of the models, at least one; all begin with the same state.
        folder: for the file; None: all is in memory.

    Raises:
        FederationError: there is no name, or one occurs twice, or holds what separates names in
            messages and files.
        OSError: the disk has no room for the file.
    """

    def __init__(
        self,
        config: Config,
        learner: Learner,
        schemas: Schemas,
        names: Sequence[str],
        folder: Path | None = None,
    ) -> None:
        if not _are_names(names):
            raise FederationError(
                f"exchange={config.exchange.name}: models must have different names without '/', "
                f"one at least, not {names!r:.80}"
            )
        self.learner = learner
        self.schemas = schemas
        self.names = tuple(names)
        self._schemas = {Role.SHARED: schemas.shared, Role.SERVER: schemas.server}
        self._loaded: str | None = self.names[0]
        size = schemas.shared.size
        self._rows = _rows_on_disk(folder, self.names, size) if folder else {}
        self._residuals: dict[str, np.ndarray] = {}
        if schemas.has_residuals:
            self._residuals = _rows_on_disk(folder, self.names, size) if folder else {}
            for name in self.names:
                self._residuals.setdefault(name, np.zeros(size, np.float32))
        self._waiting = {name: self._packed(name) for name in self.names[1:]}
        build = config.server_optimizer.build
        self.optimizers: dict[str, ServerOptimizer] = {name: build(size) for name in self.names}
        trained = learner.trained()
        self.trained_spans = [s for name, s in schemas.shared.spans.items() if name in trained]

    @property
    def first(self) -> str:
        """The model that is evaluated and saved."""
        return self.names[0]

    def load(self, name: str) -> Learner:
        """The learner with the state of this model; what changes it changes the model.

        Raises:
            FederationError: the exchange names a model that it does not have.
        """
        if name != self._loaded:
            if name not in self._waiting:
                raise FederationError(f"exchange: no model is called {name!r}: {list(self.names)}")
            packed = self._waiting.pop(name)
            self._store_active()
            for role, schema in self._schemas.items():
                schema.unpack(packed[role], self.learner.state(role))
            self._loaded = name
        return self.learner

    def shared(self, name: str) -> np.ndarray:
        """(size,) float32 shared state of a model."""
        return self.schemas.shared.pack(self.load(name).state(Role.SHARED))

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """The arrays of a message down for a model."""
        return pack_state(self.load(name), self.schemas, self._residuals.get(name))

    def as_received(self, name: str) -> np.ndarray:
        """(size,) float32 shared state of a model as clients decode what :meth:`arrays` returns."""
        return self.schemas.as_received(self._as_sent(name))

    def update(self, name: str, mean: np.ndarray, received: np.ndarray | None = None) -> None:
        """Makes the mean of the clients' states, or of their updates, a model's new state.

        Args:
            mean: (size,) float32; may be overwritten.
            received: what :meth:`as_received` returned for the model as it is, where that is known.

        Raises:
            OverflowError: the new state, or what the optimizer remembers, is not finite.
        """
        if name in self._residuals:
            received = self.as_received(name) if received is None else received
            self._residuals[name][...] = self._as_sent(name) - received
        optimizer = self.optimizers[name]
        before = self.shared(name) if optimizer.needs_before else mean
        state = optimizer.step(before, mean, self.trained_spans)
        if not all(map(all_finite, (state, *optimizer.moments().values()))):
            raise OverflowError(f"the new state of {name} is not finite")
        self.schemas.shared.unpack(state, self.load(name).state(Role.SHARED))

    def copy(self, source: str, target: str) -> None:
        """Makes a model a copy of another one, with server state and its optimizer's moments."""
        self.begin(target, self.load(source))
        if source in self._residuals:
            self._residuals[target][...] = self._residuals[source]
        moments = self.optimizers[source].moments()
        self.optimizers[target].load_moments(moments)

    def begin(self, name: str, learner: Learner) -> None:
        """Gives a model the state of a learner of the same kind."""
        packed = {r: schema.pack(learner.state(r)) for r, schema in self._schemas.items()}
        for role, schema in self._schemas.items():
            schema.unpack(packed[role], self.load(name).state(role))

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint holds: the first model by its tensors' names, and the rest."""
        self.load(self.first)
        tensors = {n: t for role in TRAVELLING for n, t in self.learner.state(role).items()}
        for name, packed in sorted(self._waiting.items()):
            for role, values in packed.items():
                tensors[f"{MODELS}{name}/{role.value}"] = torch.from_numpy(values)
        for name, residual in self._residuals.items():
            tensors[f"{RESIDUALS}{name}"] = torch.from_numpy(residual)
        for name, optimizer in self.optimizers.items():
            for moment, values in optimizer.moments().items():
                tensors[f"{OPTIMIZER}{name}/{moment}"] = torch.from_numpy(values)
        return tensors

    def load_tensors(self, saved: Mapping[str, Tensor]) -> None:
        """Takes back what :meth:`tensors` returned.

        Raises:
            ValueError: they are of other models, or of another optimizer; then nothing has changed.
        """
        ours = self.tensors()
        needed, stored = _shapes(ours), _shapes(saved)
        for kind in ("another model", *KINDS.values()):
            if needed.get(kind) != stored.get(kind):
                raise ValueError(f"it holds {kind}")
        for name, tensor in ours.items():
            if not name.startswith(OPTIMIZER):
                tensor.copy_(saved[name])
        for name, optimizer in self.optimizers.items():
            moments = with_prefix(saved, f"{OPTIMIZER}{name}/")
            optimizer.load_moments({n: t.numpy() for n, t in moments.items()})

    def mix(self, weights: Mapping[str, Mapping[str, float]]) -> None:
        """Makes the shared states of models weighted sums of those before.

        Args:
            weights: for each such model, the weights of models by their names.
        """
        self._store_active()
        sources = sorted({source for row in weights.values() for source in row})
        for block in blocks_of([slice(0, self.schemas.shared.size)]):
            old = {name: self._flat(name)[block].astype(np.float64) for name in sources}
            for target, row in weights.items():
                total = np.zeros(block.stop - block.start)
                for name, weight in sorted(row.items()):
                    total += weight * old[name]
                self._flat(target)[block] = total

    def load_mean(self, names: Collection[str]) -> Learner:
        """The learner with the mean of models' shared states; changes to it are lost."""
        self._store_active()
        mean = np.empty(self.schemas.shared.size, np.float32)
        for block in blocks_of([slice(0, self.schemas.shared.size)]):
            mean[block] = sum(self._flat(n)[block].astype(np.float64) for n in names) / len(names)
        self.schemas.shared.unpack(mean, self.learner.state(Role.SHARED))
        return self.learner

    def consensus_distance(self, names: Collection[str]) -> float:
        """How far models are apart in what gradients train.

        Returns:
            The root of the mean squared distance of the models to their mean, divided by the
            mean's length; 0: all are equal.
        """
        self._store_active()
        apart = length = 0.0
        for block in blocks_of(self.trained_spans):
            states = np.stack([self._flat(name)[block].astype(np.float64) for name in names])
            mean = states.mean(0)
            apart += float(np.square(states - mean).sum()) / len(names)
            length += float(np.square(mean).sum())
        return (apart / length) ** 0.5 if length > 0 else 0.0

    def _as_sent(self, name: str) -> np.ndarray:
        """(size,) shared state of a model, with its residual, just before it is encoded."""
        shared = self.shared(name)
        return shared + self._residuals[name] if name in self._residuals else shared

    def _flat(self, name: str) -> np.ndarray:
        """(size,) shared state of a model that waits."""
        return self._waiting[name][Role.SHARED]

    def _store_active(self) -> None:
        """Puts the loaded model with those that wait; the learner then holds no model's state."""
        if self._loaded is not None:
            self._waiting[self._loaded] = self._packed(self._loaded)
            self._loaded = None

    def _packed(self, name: str) -> dict[Role, np.ndarray]:
        """The learner's state, packed where this model waits."""
        packed = {r: schema.pack(self.learner.state(r)) for r, schema in self._schemas.items()}
        if name in self._rows:
            self._rows[name][...] = packed[Role.SHARED]
            packed[Role.SHARED] = self._rows[name]
        return packed


def _are_names(names: Any) -> bool:
    """Whether these are different names, one at least; an exchange may be of a user's package."""
    if isinstance(names, str) or not isinstance(names, Sequence):
        return False
    are_texts = all(isinstance(name, str) and name and "/" not in name for name in names)
    return are_texts and 0 < len(names) == len(set(names))


def _rows_on_disk(folder: Path, names: Sequence[str], size: int) -> dict[str, np.ndarray]:
    """(size,) float32 for each name, in an unnamed file in this folder.

    Raises:
        OSError: there is no room for it.
    """
    shape = len(names), max(1, size)
    with TemporaryFile(dir=folder) as file:
        # Taken now: where a disk is full, writing to a mapped page kills the process (SIGBUS).
        os.posix_fallocate(file.fileno(), 0, 4 * shape[0] * shape[1])
        matrix = np.memmap(file, np.float32, "w+", shape=shape)
    return {name: matrix[row, :size] for row, name in enumerate(names)}


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
    """Shapes and types of a checkpoint's tensors, by kind and then by name."""
    shapes: dict[str, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        prefix = f"{name.partition('/')[0]}/"
        of_kind = shapes.setdefault(KINDS.get(prefix, "another model"), {})
        of_kind[name] = (tensor.shape, tensor.dtype)
    return shapes
