"""What travels: named flat arrays for each role, with a fingerprint of the tensors inside.

A message down holds the shared state, and "server" where a method has server state. A message up
holds what was trained (nothing in round 0) and the method's contributions; the answer to an
evaluation holds no arrays at all. Nothing else can be packed: the tensors are chosen by role, and
roles that never leave a client have no schema.

With `federation.wire=float32` the shared state is one array, "shared", both ways. With fewer bits
:mod:`orchestra_flwr.federation.messages.codec` makes several arrays of it, and clients send what
training *changed* of the state that they received ("update"): changes are small, so fewer bits lose
little of them. Encoding the state has one outcome, so the server knows what clients decoded; it
adds their updates to its own float32 state, so that rounding errors never add up over the rounds.
Server state and contributions are small, and clustering and its privacy depend on their values:
they are always float32.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor

from orchestra_flwr.config import Config, Wire
from orchestra_flwr.federation.messages.codec import BlockCodec, Codec
from orchestra_flwr.fingerprints import fingerprint_of
from orchestra_flwr.flower.arrays import as_tensor
from orchestra_flwr.methods import Role
from orchestra_flwr.models.batch_norm import is_statistic, is_variance
from orchestra_flwr.plugins import fingerprint
from orchestra_flwr.training import Learner

FORMAT = 5  # raised whenever messages, or the codes in them, change their meaning


@dataclass(frozen=True)
class Schema:
    """Names and shapes of a role's tensors, in the order in which they are packed."""

    entries: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, learner: Learner, role: Role) -> Self:
        """The schema of one role.

        Raises:
            ValueError: the role is the client's own.
        """
        if role in (Role.LOCAL, Role.TRANSIENT):
            raise ValueError(f"{role.value} state never travels")
        return cls(tuple((name, tuple(t.shape)) for name, t in learner.state(role).items()))

    @cached_property
    def size(self) -> int:
        """Number of values."""
        return sum(math.prod(shape) for _, shape in self.entries)

    @cached_property
    def fingerprint(self) -> str:
        """Differs whenever a name, a shape, the order or the message format differs."""
        return fingerprint_of(repr((FORMAT, self.entries)))

    def pack(self, state: Mapping[str, Tensor]) -> np.ndarray:
        """(size,) float32 array of all tensors."""
        flat = np.empty(self.size, np.float32)  # numpy asks for huge pages: a third of the time
        for name, values in self.views(flat).items():
            values.copy_(state[name].detach())
        return flat

    def unpack(self, flat: np.ndarray, into: Mapping[str, Tensor]) -> None:
        """Copies a packed array into tensors of the same names and shapes.

        Raises:
            ValueError: the array has another size.
        """
        with torch.no_grad():
            for name, values in self.views(flat).items():
                into[name].copy_(values)

    def views(self, flat: np.ndarray) -> dict[str, Tensor]:
        """The tensors in a packed array, on its memory and only to be read.

        Raises:
            ValueError: the array has another size.
        """
        if flat.shape != (self.size,):
            raise ValueError(f"expected {self.size} values, got an array {flat.shape}")
        source = as_tensor(flat)
        return {name: source[self.spans[name]].view(shape) for name, shape in self.entries}

    @cached_property
    def statistics(self) -> tuple[tuple[slice, bool], ...]:
        """Where BatchNorm's running statistics lie, and whether they are variances."""
        spans = self.spans.items()
        return tuple((span, is_variance(name)) for name, span in spans if is_statistic(name))

    @cached_property
    def spans(self) -> dict[str, slice]:
        """Where each tensor's values lie in the packed array, by its name."""
        spans, end = {}, 0
        for name, shape in self.entries:
            spans[name] = slice(end, end := end + math.prod(shape))
        return spans


@dataclass(frozen=True)
class Schemas:
    """The schemas of everything that travels, and how shared state is encoded."""

    shared: Schema  # what is trained and averaged
    server: Schema  # what the server makes
    wire: Wire = "float32"  # bits of the shared state's values
    plugins: str = ""  # the fingerprint of the users' packages that take part
    # Frozen weights, which nobody trains, travel in a way of their own (:mod:`.frozen_weights`)
    frozen: Schema = Schema(())

    @classmethod
    def of(cls, learner: Learner, config: Config) -> Self:
        """The schemas of a run.

        Raises:
            PluginError: a package with plug-ins cannot be imported.
        """
        return cls(
            Schema.of(learner, Role.SHARED),
            Schema.of(learner, Role.SERVER),
            config.federation.wire,
            fingerprint(config.plugins),
            Schema.of(learner, Role.FROZEN),
        )

    @cached_property
    def codec(self) -> Codec:
        """How shared state, and what clients send of it, is encoded."""
        if self.wire == "float32":
            return Codec(self.shared.size)
        return BlockCodec(self.shared.entries, self.wire)

    @cached_property
    def fingerprint(self) -> str:
        """What server and client compare before they trust each other's arrays."""
        parts = [self.shared.fingerprint, self.server.fingerprint, self.wire, self.plugins]
        parts += [self.frozen.fingerprint] if self.frozen.size else []
        return "-".join(part for part in parts if part)

    @property
    def sends_updates(self) -> bool:
        """Whether clients send the change of the shared state instead of the state."""
        return self.wire != "float32"

    @property
    def has_residuals(self) -> bool:
        """Whether what rounding takes from a model is added to it before it is sent next time.

        With few bits nearly every value would otherwise be rounded to the same side for many
        rounds. Known as error feedback: Seide et al., "1-Bit Stochastic Gradient Descent",
        Interspeech 2014; Karimireddy et al., "Error Feedback Fixes SignSGD", ICML 2019.
        """
        return self.wire == "int4"

    @property
    def reply(self) -> str:
        """The name of what clients send of the shared state."""
        return "update" if self.sends_updates else Role.SHARED.value

    @property
    def down(self) -> list[str]:
        """The names of the arrays of a message down, in order."""
        shared = self.codec.form(Role.SHARED.value) if self.shared.size else ()
        return [*shared, *([Role.SERVER.value] if self.server.size else [])]

    def as_received(self, shared: np.ndarray) -> np.ndarray:
        """(size,) shared state as clients decode it: the same on every machine, and every time."""
        return self.codec.decode(Role.SHARED.value, self.codec.encode(Role.SHARED.value, shared))

    def pack_trained(
        self, trained: np.ndarray, received: np.ndarray | None, generator: torch.Generator
    ) -> dict[str, np.ndarray]:
        """What a client sends of its shared state.

        Args:
            trained: (size,) state after training; overwritten by the update where one is sent.
            received: (size,) state before it; needed where `sends_updates`.
            generator: of the unbiased rounding of updates.

        Raises:
            ValueError: an update that is not finite.
        """
        if self.sends_updates:
            assert received is not None
            trained -= received
        return self.codec.encode(self.reply, trained, generator)

    def unpack_trained(
        self, arrays: Mapping[str, np.ndarray], received: np.ndarray | None
    ) -> np.ndarray:
        """(size,) state after training, from what :meth:`pack_trained` made of it.

        Raises:
            ValueError: an array is missing, or has another type or size.
        """
        values = self.codec.decode(self.reply, arrays)
        if self.sends_updates:
            assert received is not None
            values += received
        return values


def pack_state(
    learner: Learner, schemas: Schemas, residual: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """The arrays of a message down that carries the learner's state.

    Args:
        residual: (size,) what rounding took from the shared state last time; it is added now.
    """
    arrays: dict[str, np.ndarray] = {}
    if schemas.shared.size:
        shared = schemas.shared.pack(learner.state(Role.SHARED))
        if residual is not None:
            shared = shared + residual
        arrays |= schemas.codec.encode(Role.SHARED.value, shared)
    if schemas.server.size:
        arrays[Role.SERVER.value] = schemas.server.pack(learner.state(Role.SERVER))
    return arrays


def unpack_state(arrays: Mapping[str, np.ndarray], learner: Learner, schemas: Schemas) -> None:
    """Copies the arrays of a message down into a learner; errors as :func:`received_state`."""
    state = {**learner.state(Role.SHARED), **learner.state(Role.SERVER)}
    with torch.no_grad():
        for name, values in received_state(arrays, schemas).items():
            state[name].copy_(values)


def received_state(arrays: Mapping[str, np.ndarray], schemas: Schemas) -> dict[str, Tensor]:
    """The tensors of a message down by name, on its memory and only to be read.

    Raises:
        ValueError: an array is missing or has another size.
    """
    state: dict[str, Tensor] = {}
    if schemas.shared.size:
        state |= schemas.shared.views(schemas.codec.decode(Role.SHARED.value, arrays))
    if schemas.server.size:
        if Role.SERVER.value not in arrays:
            raise ValueError(f"the message holds no {Role.SERVER.value} state")
        state |= schemas.server.views(arrays[Role.SERVER.value])
    return state


def for_models(arrays: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The arrays of a message down: `<model>/<array>` for several models, `<array>` for one."""
    return {
        prefix + name: array
        for prefix, parts in zip(_prefixes([*arrays]), arrays.values(), strict=True)
        for name, array in parts.items()
    }


def names_down(schemas: Schemas, models: Sequence[str]) -> list[str]:
    """The names of the arrays of a message down, for one model after the other."""
    return [prefix + name for prefix in _prefixes(models) for name in schemas.down]


def _prefixes(models: Sequence[str]) -> list[str]:
    return [""] if len(models) == 1 else [f"{model}/" for model in models]
