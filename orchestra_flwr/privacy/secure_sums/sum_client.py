"""A client's side of one sum: what it sends in each stage, and what it refuses."""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter

from orchestra_flwr.privacy.secure_sums import primitives
from orchestra_flwr.privacy.secure_sums.cohort import MAX_CLIENTS, MIN_COHORT, degree, quorum
from orchestra_flwr.privacy.secure_sums.confirmations import Confirmations, SumRefusedError
from orchestra_flwr.privacy.secure_sums.primitives import Vector
from orchestra_flwr.privacy.secure_sums.transcript import (
    Advertisement,
    Occasion,
    graph_digest,
    graph_of,
    roster_digest,
)

Sign = Callable[[bytes], bytes]
Verify = Callable[[str, bytes, bytes], bool]  # whether the client of this name signed these bytes
STAGES = ("keys", "shares", "boxes", "input", "confirm", "unmask")
OVER = "over"  # of a client that is through, or has refused something


@dataclass
class _Secrets:
    """What a client must remember from stage to stage, and nobody else may know."""

    cipher_seed: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    mask_seed: bytes = field(default_factory=lambda: secrets.token_bytes(primitives.SEED_BYTES))
    own_seed: bytes = field(default_factory=lambda: secrets.token_bytes(primitives.SEED_BYTES))
    held: dict[str, bytes] = field(default_factory=dict)  # both shares, by their owner


@dataclass(eq=False, repr=False)  # without a repr: its secrets must not reach a log
class SumClient:
    """One client in one sum.

    What it refuses, including a stage out of order, raises a :class:`SumRefusedError` that says
    why; after that it answers nothing more of this sum.
    """

    __pydantic_config__: ClassVar = ConfigDict(
        defer_build=True, ser_json_bytes="hex", val_json_bytes="hex"
    )

    name: str  # the client's
    occasion: Occasion  # of the sum
    _: KW_ONLY
    sign: Sign | None = None  # by the client's registered key; None: it has none
    # Knows the registered keys of all; None: the server is trusted to follow the protocol, since it
    # could invent the other clients.
    verify: Verify | None = None
    least: int = MIN_COHORT  # clients whose vectors must be in the sum
    # What follows changes from stage to stage.
    _stage: str = STAGES[0]
    _secrets: _Secrets = field(default_factory=_Secrets)
    _roster: dict[str, Advertisement] = field(default_factory=dict)
    _roster_digest: str = ""
    _drawn: list[str] = field(default_factory=list)  # neighbours of its own choice, who hold shares
    _drawn_by: list[str] = field(default_factory=list)  # neighbours that chose it
    _graph: str = ""  # a digest of who drew whom
    _basis: str = ""
    _alive: list[str] = field(default_factory=list)
    _survivors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.least = max(self.least, MIN_COHORT)

    @property
    def count(self) -> int:
        """The number of clients that the sum began with."""
        return len(self._roster)

    def advertise(self) -> list[str]:
        """Its public keys, as :meth:`Advertisement.fields`."""
        self._enter("keys")
        own = Advertisement(
            self.name,
            primitives.public_key(self._secrets.cipher_seed),
            primitives.public_key(self._secrets.mask_seed),
        )
        signature = self._signed(own.statement(self.occasion))
        own = Advertisement(own.name, own.cipher_key, own.mask_key, signature)
        self._roster = {self.name: own}
        return own.fields()

    def share(self, roster: Sequence[Sequence[str]]) -> dict[str, Any]:
        """Draws neighbours among all clients, and seals shares of its secrets for them.

        Returns:
            `boxes`, a sealed share in hexadecimal for each neighbour's name, and `commitment`.

        Raises:
            SumRefusedError: too few clients, a key that is missing, repeated, replaced or not
                signed, or a stage out of order.
        """
        self._enter("shares")
        own = self._roster[self.name]
        self._roster = self._checked(roster, own)
        self._roster_digest = roster_digest(self._roster.values())
        others = sorted(self._roster.keys() - {self.name})
        self._drawn = sorted(secrets.SystemRandom().sample(others, degree(self.count)))
        holders = [self.name, *self._drawn]
        needed, numbers = quorum(len(holders)), range(1, len(holders) + 1)
        parts = [
            primitives.split(seed, needed, numbers)
            for seed in (self._secrets.own_seed, self._secrets.mask_seed)
        ]
        pairs = {holder: parts[0][i] + parts[1][i] for i, holder in enumerate(holders, 1)}
        self._secrets.held[self.name] = pairs.pop(self.name)
        agreed, boxes = primitives.agreement(self._secrets.cipher_seed), {}
        for holder, pair in pairs.items():
            about = self._about(self.name, holder)
            try:
                key = agreed(self._roster[holder].cipher_key, about)
            except ValueError as error:
                self._refuse(f"the keys of {holder}: {error}")
            boxes[holder] = primitives.sealed(key, pair, about).hex()
        about = self.occasion.statement("commitment", self.name)
        return {"boxes": boxes, "commitment": primitives.commitment(self._secrets.own_seed, about)}

    def hold(self, boxes: Mapping[str, str], graph: Mapping[str, str]) -> list[str]:
        """Opens the shares that others sealed for it, and compares who drew whom.

        Returns the senders whose shares do not open. Such a share is lost, but its sender stays a
        neighbour, with a mask. So a server gains nothing by changing one. `graph` is
        :func:`graph_of` all clients that gave out shares.

        Raises:
            SumRefusedError: shares are withheld or were not due, or a stage out of order.
        """
        self._enter("boxes")
        own = graph_of({self.name: self._drawn}, self._roster)
        place = 1 << sorted(self._roster).index(self.name)
        if not graph.keys() <= self._roster.keys() or graph.get(self.name) != own[self.name]:
            self._refuse("neighbours that are not those that it drew")
        try:
            self._drawn_by = [name for name, bits in graph.items() if int(bits, 16) & place]
        except ValueError as error:
            self._refuse(f"a malformed list of neighbours: {error}")
        if boxes.keys() != {*self._drawn_by}:
            self._refuse("shares of clients that did not draw it, or those of others withheld")
        self._graph = graph_digest(graph)
        agreed, unopened = primitives.agreement(self._secrets.cipher_seed), []
        for sender, box in boxes.items():
            about = self._about(sender, self.name)
            try:
                key = agreed(self._roster[sender].cipher_key, about)
                pair = primitives.opened(key, bytes.fromhex(box), about)
                if len(pair) != 2 * primitives.SHARE_BYTES:
                    raise ValueError("not two shares")
            except ValueError:
                unopened.append(sender)
            else:
                self._secrets.held[sender] = pair
        return sorted(unopened)

    def mask(self, alive: Sequence[str], vector: Vector, basis: str = "") -> str:
        """Masks its vector, in place.

        Args:
            alive: clients that are left, itself among them.
            vector: of the layout that was agreed on.
            basis: a digest of what the vector was made from, which must be the same for all: masks
                only cancel between clients that have the same.

        Returns:
            Its signature, in hexadecimal, of what it was shown: only those that were shown the same
            help to open its own mask. Otherwise a server could show it a shorter list of clients,
            and its masks with the others would be missing.

        Raises:
            SumRefusedError: too few clients or neighbours are left, another length of vector, or a
                stage out of order.
        """
        self._enter("input")
        self._alive = self._members(alive, self._roster, "shares")
        self._basis = basis
        holders = {self.name, *self._drawn}
        if len(holders & {*alive}) < quorum(len(holders)):
            self._refuse(f"only {len(holders & {*alive}) - 1} of its neighbours are left")
        if not primitives.fits(vector, self.occasion.layout):
            self._refuse("the server agreed with the others on a vector of another length")
        neighbours = {*self._drawn, *self._drawn_by} & {*alive}
        try:
            keys = self._mask_keys(neighbours)
        except ValueError as error:
            self._refuse(str(error))
        masks = [(key, 1 if self.name < name else -1) for name, key in keys.items()]
        own = primitives.derived(self._secrets.own_seed, b"mask")
        primitives.add_masks(vector, [(own, 1), *masks])
        return self._signed(self._view()).hex()

    def confirm(self, survivors: Sequence[str], confirmations: Confirmations) -> str:
        """Records whose vectors are in the sum, and returns its signature of them in hexadecimal.

        Raises:
            SumRefusedError: too few, one that gave out no shares, another set than before for
                this round, or a stage out of order.
        """
        self._enter("confirm")
        self._survivors = self._members(survivors, self._alive, "vectors")
        try:
            confirmations.confirm(self.occasion, self._survivors)
        except SumRefusedError as error:
            self._refuse(str(error))
        return self._signed(self._confirmed()).hex()

    def unmask(
        self, signatures: Mapping[str, str], views: Mapping[str, str]
    ) -> dict[str, dict[str, str]]:
        """Returns the shares that the sum needs: for each client one of the two, and only once.

        Every client on the list must have signed what this one was shown. Otherwise a server could
        list a client whose masks it had kept from all others, and get its vector as the difference
        between two sums.

        Args:
            signatures: what clients returned from :meth:`confirm`, by name.
            views: what those of the list without such a signature returned from :meth:`mask`.

        Returns:
            `own` and `keys`: shares in hexadecimal, by their owner: of the own masks of those whose
            vectors are in the sum, and of the mask keys of those whose vectors are not in it.

        Raises:
            SumRefusedError: fewer than two thirds of the clients signed the same, somebody on the
                list was shown something else, or a stage out of order.
        """
        self._enter("unmask")
        confirmed, view = self._confirmed(), self._view()
        others = [
            name
            for name in self._survivors
            if not self._is_signed(name, confirmed, signatures.get(name, ""))
        ]
        if (signed := len(self._survivors) - len(others)) < quorum(self.count):
            self._refuse(
                f"{signed} of {self.count} clients signed the same list of clients, "
                f"{quorum(self.count)} must"
            )
        for name in others:
            if not self._is_signed(name, view, views.get(name, "")):
                self._refuse(f"{name} masked its vector by something else, or did not sign by what")
        shares: dict[str, dict[str, str]] = {"own": {}, "keys": {}}
        for name in self._secrets.held.keys() & {*self._alive}:
            pair = self._secrets.held[name]
            own, key = pair[: primitives.SHARE_BYTES], pair[primitives.SHARE_BYTES :]
            if name in self._survivors:
                shares["own"][name] = own.hex()
            else:
                shares["keys"][name] = key.hex()
        self._forget()
        return shares

    def state(self) -> str:
        """All of it but `sign` and `verify`, with its secrets: only for whoever has them anyway."""
        return _ADAPTER.dump_json(self, exclude={"sign", "verify"}).decode()

    @staticmethod
    def from_state(text: str) -> "SumClient":
        """Reads :meth:`state`; the result has neither `sign` nor `verify`."""
        return _ADAPTER.validate_json(text)

    def _enter(self, stage: str) -> None:
        """Allows each stage once, and in order."""
        if self._stage != stage:
            self._refuse(f"asked for stage {stage}, and it is {self._stage}")
        self._stage = (*STAGES, OVER)[STAGES.index(stage) + 1]

    def _checked(
        self, roster: Sequence[Sequence[str]], own: Advertisement
    ) -> dict[str, Advertisement]:
        try:
            parsed = [Advertisement.of(fields) for fields in roster]
        except (TypeError, ValueError) as error:
            self._refuse(f"a malformed list of keys: {error}")
        names = [member.name for member in parsed]
        if own not in parsed:
            self._refuse("its own keys were replaced or left out")
        keys = [key for member in parsed for key in (member.cipher_key, member.mask_key)]
        if len({*names}) < len(names) or len({*keys}) < len(keys):
            self._refuse("a client or a key twice")
        if not self.least <= len(parsed) <= MAX_CLIENTS:
            self._refuse(
                f"a sum of {len(parsed)} clients, {self.least} to {MAX_CLIENTS} are allowed"
            )
        for member in parsed:
            statement = member.statement(self.occasion)
            if not self._is_signed(member.name, statement, member.signature.hex()):
                self._refuse(
                    f"the keys of {member.name} are not signed by a key in this client's list: if "
                    f"{member.name} was registered lately or has a new key, bring this client a "
                    "new peers.pem and start it again"
                )
        return {member.name: member for member in sorted(parsed, key=lambda member: member.name)}

    def _members(
        self, names: Sequence[str], among: Mapping[str, object] | Sequence[str], what: str
    ) -> list[str]:
        """Sorted names of clients that are left."""
        if len({*names}) < len(names) or not {*names} <= {*among}:
            self._refuse(f"{what} of clients that are not in the sum, or twice")
        if self.name not in names:
            self._refuse(f"its own {what} are left out")
        if len(names) < (needed := max(self.least, quorum(self.count))):
            self._refuse(f"{what} of {len(names)} of {self.count} clients, {needed} are needed")
        return sorted(names)

    def _view(self) -> bytes:
        return self.occasion.view(self._roster_digest, self._graph, self._basis, self._alive)

    def _confirmed(self) -> bytes:
        return self.occasion.confirmation(self._view(), self._survivors)

    def _signed(self, statement: bytes) -> bytes:
        return b"" if self.sign is None else self.sign(statement)

    def _is_signed(self, name: str, statement: bytes, signature: str) -> bool:
        if self.verify is None:
            return True
        try:
            return self.verify(name, statement, bytes.fromhex(signature))
        except (TypeError, ValueError):
            return False

    def _about(self, sender: str, receiver: str) -> bytes:
        """What a sealed share is bound to: this sum with all its keys, and the two clients."""
        return self.occasion.statement("shares", self._roster_digest, sender, receiver)

    def _mask_keys(self, names: Iterable[str]) -> dict[str, bytes]:
        """The keys of the masks with these neighbours."""
        agreed = primitives.agreement(self._secrets.mask_seed)
        about = {n: self.occasion.masking(self._roster_digest, self.name, n, self._basis)
                 for n in names}  # fmt: skip
        return {n: agreed(self._roster[n].mask_key, purpose) for n, purpose in about.items()}

    def _refuse(self, why: str) -> Any:
        """Ends the sum for this client, which answers nothing more of it."""
        self._forget()
        raise SumRefusedError(f"secure aggregation, round {self.occasion.round}: {why}")

    def _forget(self) -> None:
        self._stage = OVER
        self._secrets = _Secrets(b"", b"", b"")


_ADAPTER = TypeAdapter(SumClient)
