"""What the parties of a sum must agree on, as bytes that can be signed and hashed."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestra_flwr.files import PLAIN_NAME

LABEL = "orchestra_flwr secure sum 5"  # raised whenever the meaning of a stage changes
Layout = tuple[tuple[int, int], ...]  # of a vector: bits of its integers, and how many of them


@dataclass(frozen=True)
class Occasion:
    """Which sum this is, as a server says: clients write it to their disks.

    Raises:
        ValueError: a name or a number that no run of this package has.
    """

    run: str  # the run's identifier
    round: int  # of each round of a run there is one sum
    attempt: str  # differs whenever the server begins anew
    layout: Layout  # of everybody's vector
    # The noise of which each client adds its share, as `privacy.noise_multiplier` (0: none). Signed
    # by all, since each relies on the noise of the others.
    noise: float = 0.0

    def __post_init__(self) -> None:
        for name in (self.run, self.attempt):
            if not PLAIN_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a run or an attempt")
        if self.round < 0:
            raise ValueError(f"a sum of round {self.round}")

    def statement(self, stage: str, *parts: object) -> bytes:
        """What is signed in a stage, or binds a key to it."""
        layout = list(map(list, self.layout))
        about = [self.run, self.round, self.attempt, layout, self.noise]
        return _canonical([LABEL, stage, *about, *parts])

    def masking(self, roster: str, one: str, other: str, basis: str) -> bytes:
        """What the mask of two clients is bound to: all keys, the two, and their vectors' basis.

        Not to the secret of their keys alone: another client may advertise a key with which a third
        one has the same secret (X25519 has eight for each), and its mask would cancel the other.
        The order of the two makes no difference.
        """
        return self.statement("input", roster, *sorted((one, other)), basis)

    def view(self, roster: str, graph: str, basis: str, alive: Iterable[str]) -> bytes:
        """What a client's masks follow from, which it signs when it masks its vector.

        That is the digests of roster and graph, the basis as for `SumClient.mask`, and the clients
        that were left when vectors were asked for.
        """
        return self.statement("view", roster, graph, basis, names_digest(alive))

    def confirmation(self, view: bytes, survivors: Iterable[str]) -> bytes:
        """What clients sign before they open a sum, all the same: whose vectors came."""
        return self.statement("confirm", hashlib.sha256(view).hexdigest(), names_digest(survivors))


@dataclass(frozen=True)
class Advertisement:
    """A client's public keys for one sum, of 32 bytes each (X25519)."""

    name: str
    cipher_key: bytes  # with which shares are sealed
    mask_key: bytes  # from which masks are made
    signature: bytes = b""  # of both, by the client's registered key; empty without one

    def statement(self, occasion: Occasion) -> bytes:
        """What is signed."""
        return occasion.statement("keys", self.name, self.cipher_key.hex(), self.mask_key.hex())

    def fields(self) -> list[str]:
        """The attributes as texts, for a message."""
        return [self.name, self.cipher_key.hex(), self.mask_key.hex(), self.signature.hex()]

    @classmethod
    def of(cls, fields: Sequence[str]) -> "Advertisement":
        """Reads :meth:`fields`; a ValueError where they are none."""
        name, *rest = fields
        cipher_key, mask_key, signature = map(bytes.fromhex, rest)
        if not isinstance(name, str) or len(cipher_key) != 32 or len(mask_key) != 32:
            raise ValueError("a client's keys have 32 bytes each")
        return cls(name, cipher_key, mask_key, signature)


def roster_digest(roster: Iterable[Advertisement]) -> str:
    """A digest of all public keys of a sum, in hexadecimal."""
    fields = [[member.name, member.cipher_key.hex(), member.mask_key.hex()] for member in roster]
    return hashlib.sha256(_canonical(fields)).hexdigest()


def graph_digest(graph: Mapping[str, str]) -> str:
    """A digest of who drew whom (:func:`graph_of`), in hexadecimal."""
    return hashlib.sha256(_canonical(sorted(graph.items()))).hexdigest()


def graph_of(drawn: Mapping[str, Iterable[str]], roster: Iterable[str]) -> dict[str, str]:
    """Whom each client drew as neighbours, by its name: hexadecimal bits, one for each name."""
    place = {name: 1 << i for i, name in enumerate(sorted(roster))}
    return {name: f"{sum(place[other] for other in names):x}" for name, names in drawn.items()}


def names_digest(names: Iterable[str]) -> str:
    """A digest of a set of clients, in hexadecimal."""
    return hashlib.sha256(_canonical(sorted(names))).hexdigest()


def _canonical(value: object) -> bytes:
    """JSON, which keeps parts apart whatever is in them."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()
