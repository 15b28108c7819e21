"""The server's named models, and what each one's optimizer remembers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from orchestra_flwr.config import Config
from orchestra_flwr.federation.messages.schema import Schemas, pack_state
from orchestra_flwr.federation.server_optimizers import ServerOptimizer
from orchestra_flwr.methods import Role
from orchestra_flwr.training import Learner

TRAVELLING = (Role.SHARED, Role.SERVER)
OPTIMIZER = "server_optimizer/"  # what the names of moments in a checkpoint begin with
MODELS = "models/"  # and those of all models but the first


class Models:
    """Named models of one kind: one is loaded in the learner, the others wait as flat arrays.

    Memory is that of the models and of their optimizers' moments; with one model nothing is copied.

    Args:
        config: the run's configuration.
        learner: the server's; its state is that of the first model.
        schemas: of the learner.
        names: of the models, at least one; all begin with the same state.

    Raises:
        ValueError: a name occurs twice, or holds what separates names in messages and files.
    """

    def __init__(
        self, config: Config, learner: Learner, schemas: Schemas, names: Sequence[str]
    ) -> None:
        if len(set(names)) < len(names) or any(not name or "/" in name for name in names):
            raise ValueError(f"models must have different names without '/', not {list(names)}")
        self.learner = learner
        self.schemas = schemas
        self.names = tuple(names)
        self._schemas = {Role.SHARED: schemas.shared, Role.SERVER: schemas.server}
        self._loaded = self.names[0]
        self._waiting = {name: self._packed() for name in self.names[1:]}
        build, size = config.server_optimizer.build, schemas.shared.size
        self.optimizers: dict[str, ServerOptimizer] = {name: build(size) for name in self.names}
        trained = learner.trained()
        self.trained_spans = [
            span
            for (name, _), span in zip(schemas.shared.entries, schemas.shared.spans, strict=True)
            if name in trained
        ]

    @property
    def first(self) -> str:
        """The model that is evaluated and saved."""
        return self.names[0]

    def load(self, name: str) -> Learner:
        """The learner with the state of this model, which changes to it change."""
        if name != self._loaded:
            packed = self._waiting.pop(name)
            self._waiting[self._loaded] = self._packed()
            for role, schema in self._schemas.items():
                schema.unpack(packed[role], self.learner.state(role))
            self._loaded = name
        return self.learner

    def shared(self, name: str) -> np.ndarray:
        """(size,) float32 shared state of a model."""
        return self.schemas.shared.pack(self.load(name).state(Role.SHARED))

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """The arrays of a message down for a model."""
        return pack_state(self.load(name), self.schemas)

    def update(self, name: str, mean: np.ndarray) -> None:
        """Makes the mean of the clients' states, or of their updates, a model's new state.

        Args:
            name: of the model.
            mean: (size,) float32; its memory is used.
        """
        optimizer = self.optimizers[name]
        before = self.shared(name) if optimizer.needs_before else mean
        state = optimizer.step(before, mean, self.trained_spans)
        self.schemas.shared.unpack(state, self.load(name).state(Role.SHARED))

    def copy(self, source: str, target: str) -> None:
        """Makes a model a copy of another one, with server state and its optimizer's moments."""
        self.begin(target, self.load(source))
        moments = self.optimizers[source].moments()
        self.optimizers[target].load_moments(moments)

    def begin(self, name: str, learner: Learner) -> None:
        """Gives a model the state of a learner of the same kind."""
        packed = {r: schema.pack(learner.state(r)).copy() for r, schema in self._schemas.items()}
        for role, schema in self._schemas.items():
            schema.unpack(packed[role], self.load(name).state(role))

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint holds: the first model by its tensors' names, and the rest."""
        self.load(self.first)
        tensors = {n: t for role in TRAVELLING for n, t in self.learner.state(role).items()}
        for name, packed in sorted(self._waiting.items()):
            for role, values in packed.items():
                tensors[f"{MODELS}{name}/{role.value}"] = torch.from_numpy(values)
        for name, optimizer in self.optimizers.items():
            for moment, values in optimizer.moments().items():
                tensors[f"{OPTIMIZER}{name}/{moment}"] = torch.from_numpy(values)
        return tensors

    def load_tensors(self, saved: Mapping[str, Tensor]) -> None:
        """Takes back what :meth:`tensors` returned.

        Raises:
            ValueError: it is that of other models, or of another optimizer; then nothing has
                changed.
        """
        ours = self.tensors()
        for kind, others in _by_kind(ours).items():
            found = _by_kind(saved)[kind]
            if _forms(found) != _forms(others):
                raise ValueError(f"it holds {kind}")
        for name, tensor in ours.items():
            if not name.startswith(OPTIMIZER):
                tensor.copy_(saved[name])
        for name, optimizer in self.optimizers.items():
            prefix = f"{OPTIMIZER}{name}/"
            moments = {n: t.numpy() for n, t in saved.items() if n.startswith(prefix)}
            optimizer.load_moments({n.removeprefix(prefix): m for n, m in moments.items()})

    def _packed(self) -> dict[Role, np.ndarray]:
        return {r: schema.pack(self.learner.state(r)).copy() for r, schema in self._schemas.items()}


def _by_kind(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The tensors of a checkpoint by what it means if they do not fit."""
    kinds: dict[str, dict[str, Tensor]] = {
        "another model": {},
        "other models": {},
        "the moments of another server optimizer": {},
    }
    first, others, moments = kinds.values()
    for name, tensor in tensors.items():
        if name.startswith(OPTIMIZER):
            moments[name] = tensor
        else:
            (others if name.startswith(MODELS) else first)[name] = tensor
    return kinds


def _forms(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
