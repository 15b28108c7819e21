"""The server's side of one sum: it passes on what clients seal for each other, and adds up."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from orchestra_flwr.privacy.secure_sums import primitives
from orchestra_flwr.privacy.secure_sums.cohort import MAX_CLIENTS, MIN_COHORT, degree, quorum
from orchestra_flwr.privacy.secure_sums.primitives import Vector
from orchestra_flwr.privacy.secure_sums.sum_client import Verify
from orchestra_flwr.privacy.secure_sums.transcript import (
    Advertisement,
    Layout,
    Occasion,
    graph_digest,
    graph_of,
    roster_digest,
)


class SumFailedError(RuntimeError):
    """There is no sum, and nothing of it is known; the text says why."""


class SumServer:
    """Adds up one vector of each client.

    It takes each stage's replies one by one (`take_...`), and gives what the next stage sends (a
    mapping that JSON can hold). A malformed reply raises a ValueError: that client drops out. What
    the next stage sends, and each list of clients, raises a :class:`SumFailedError` where these are
    too few, or too few of their shares are right.
    Memory is one vector, however many clients there are.

    `verify` knows the registered keys of all, so that a client that signs wrongly drops out before
    all others refuse the sum because of it; None: nothing is signed. The other arguments are those
    of :class:`Occasion`.
    """

    def __init__(
        self,
        run: str,
        round_: int,
        layout: Layout,
        *,
        noise: float = 0.0,
        verify: Verify | None = None,
    ) -> None:
        self._verify = verify
        self.occasion = Occasion(run, round_, secrets.token_hex(16), layout, noise)
        self._roster: dict[str, Advertisement] = {}
        self._keys: set[bytes] = set()  # of all in the roster
        self._agreed = primitives.agreement(secrets.token_bytes(32))  # only to try keys with
        self._boxes: dict[str, dict[str, bytes]] = {}  # by sender: those that it drew
        self._commitments: dict[str, str] = {}
        self._unopened: dict[str, set[str]] = {}  # by sender: for whom its box did not open
        self._holding: set[str] = set()  # those that opened their boxes
        self._total: Vector = primitives.zeros(layout)
        self._views: dict[str, str] = {}  # by client whose vector came: its signature
        self._signatures: dict[str, str] = {}
        self._shares: dict[str, dict[str, list[tuple[str, bytes]]]] = {"own": {}, "keys": {}}
        self.basis = ""  # as for SumClient.mask

    def take_keys(self, name: str, fields: Sequence[str]) -> None:
        """Takes what :meth:`SumClient.advertise` returned in the first stage.

        Keys for which all other clients would refuse the sum drop out here: repeated ones,
        those with which nobody can agree on a secret, and those that are not signed.
        """
        advertised = Advertisement.of(fields)
        keys = {advertised.cipher_key, advertised.mask_key}
        if advertised.name != name or len(keys) < 2 or keys & self._keys:
            raise ValueError("keys that are another client's, or one key twice")
        statement = advertised.statement(self.occasion)
        if self._verify and not self._verify(name, statement, advertised.signature):
            raise ValueError("keys that are not signed by the client's registered key")
        for key in keys:
            self._agreed(key, b"check")
        self._keys |= keys
        self._roster[name] = advertised

    def roster(self) -> list[list[str]]:
        """What all clients are sent in the second stage.

        Raises:
            SumFailedError: too few clients sent keys, or too many.
        """
        count = len(self._roster)
        if not MIN_COHORT <= count <= MAX_CLIENTS:
            raise SumFailedError(
                f"{count} clients sent their keys, {MIN_COHORT} to {MAX_CLIENTS} are allowed"
            )
        return [member.fields() for member in self._sorted_roster]

    def take_shares(self, name: str, reply: Mapping[str, Any]) -> None:
        """Takes what :meth:`SumClient.share` returned in the second stage.

        A client that drew fewer neighbours drops out here: they could not open its mask, and it
        could end the round by being silent in the last stage.
        """
        boxes = {str(holder): bytes.fromhex(box) for holder, box in dict(reply["boxes"]).items()}
        if not boxes.keys() < self._roster.keys() or name in boxes:
            raise ValueError("shares for clients that are not in the sum")
        if len(boxes) != (drawn := degree(len(self._roster))):
            raise ValueError(f"shares for {len(boxes)} clients, and not for {drawn}")
        self._boxes[name], self._commitments[name] = boxes, str(reply["commitment"])

    @property
    def sealing(self) -> list[str]:
        """Those that gave out shares: they are asked in the third stage."""
        return self._enough(sorted(self._boxes), "gave out shares")

    def boxes_for(self, name: str) -> dict[str, Any]:
        """What a client is sent in the third stage: shares that others sealed for it, and who drew
        whom."""
        boxes = {s: drawn[name].hex() for s, drawn in self._boxes.items() if name in drawn}
        return {"boxes": boxes, "graph": self._graph}

    def take_holding(self, name: str, unopened: Sequence[str]) -> None:
        """Takes what :meth:`SumClient.hold` returned in the third stage."""
        if not all(name in self._boxes.get(sender, ()) for sender in unopened):
            raise ValueError("a sealed share that it did not get")
        self._holding.add(name)
        for sender in unopened:
            self._unopened.setdefault(sender, set()).add(name)

    @property
    def unopened(self) -> dict[str, list[str]]:
        """By client, those for whom its shares did not open: it or they are lying."""
        return {sender: sorted(names) for sender, names in sorted(self._unopened.items())}

    @property
    def left_out(self) -> list[str]:
        """Clients so many of whose shares did not open that the rest cannot be enough.

        Fewer than a third of those that it drew cannot bring that about by lying.
        """
        return [
            sender
            for sender, names in sorted(self._unopened.items())
            if 1 + len(self._boxes[sender]) - len(names) < quorum(1 + len(self._boxes[sender]))
        ]

    @cached_property
    def alive(self) -> list[str]:
        """Those that are left for the fourth stage, once the third is over."""
        return self._enough(sorted(self._holding - {*self.left_out}), "hold and gave out shares")

    def take_vector(self, name: str, vector: Vector, view: str) -> None:
        """Adds a masked vector of the fourth stage; `view` is what :meth:`SumClient.mask` gave."""
        if name not in self.alive or name in self._views:
            raise ValueError("a vector of a client that is not in the sum")
        if self._verify and not self._verify(name, self._view, bytes.fromhex(view)):
            raise ValueError("what it masked its vector by is not signed by its registered key")
        if not primitives.fits(vector, self.occasion.layout):
            raise ValueError("a vector of another length or type")
        for total, part in zip(self._total, vector, strict=True):
            np.add(total, part, out=total)
        self._views[name] = view

    @property
    def survivors(self) -> list[str]:
        """Those whose vectors came: what the fifth stage sends."""
        return self._enough(sorted(self._views), "sent their vectors")

    def take_signature(self, name: str, signature: str) -> None:
        """Takes what :meth:`SumClient.confirm` returned in the fifth stage.

        A client whose signature the others would not count drops out here.
        """
        signed = bytes.fromhex(signature)
        if self._verify and not self._verify(name, self._confirmation, signed):
            raise ValueError("a list of clients that is not signed by its registered key")
        self._signatures[name] = signature

    @property
    def signatures(self) -> dict[str, str]:
        """What the last stage sends to all."""
        self._enough(sorted(self._signatures), "confirmed the list of clients")
        return self._signatures

    @property
    def views(self) -> dict[str, str]:
        """What the last stage also sends to all: what :meth:`SumClient.mask` returned to clients
        whose vectors came and who have confirmed nothing since."""
        return {name: self._views[name] for name in self._views.keys() - self._signatures.keys()}

    def take_unmasking(self, name: str, shares: Mapping[str, Any]) -> None:
        """Takes what :meth:`SumClient.unmask` returned in the last stage."""
        survivors = self._views.keys()
        parsed = {
            kind: {str(owner): bytes.fromhex(share) for owner, share in dict(shares[kind]).items()}
            for kind in ("own", "keys")
        }
        if not parsed["own"].keys() <= survivors or parsed["keys"].keys() & survivors:
            raise ValueError("shares that nobody asked for")
        for kind, by_owner in parsed.items():
            for owner, share in by_owner.items():
                holds = owner == name or name in self._boxes.get(owner, ())
                if not holds or len(share) != primitives.SHARE_BYTES:
                    raise ValueError(f"an invalid share of {owner}")
                self._shares[kind].setdefault(owner, []).append((name, share))

    def total(self) -> Vector:
        """The sum of the vectors, whose integers wrap around.

        Raises:
            SumFailedError: too few shares came, or some are wrong.
        """
        own = [primitives.derived(self._own_seed(n), b"mask") for n in sorted(self._views)]
        gone = sorted({*self.alive} - self._views.keys())
        masks = [mask for name in gone for mask in self._masks_for(name)]
        primitives.add_masks(self._total, [*((key, -1) for key in own), *masks])
        return self._total

    # What follows no longer changes once the stages that it depends on are over.

    @cached_property
    def _sorted_roster(self) -> list[Advertisement]:
        return [member for _, member in sorted(self._roster.items())]

    @cached_property
    def _roster_digest(self) -> str:
        return roster_digest(self._sorted_roster)

    @cached_property
    def _graph(self) -> dict[str, str]:
        return graph_of(self._boxes, self._roster)

    @cached_property
    def _view(self) -> bytes:
        graph = graph_digest(self._graph)
        return self.occasion.view(self._roster_digest, graph, self.basis, self.alive)

    @cached_property
    def _confirmation(self) -> bytes:
        return self.occasion.confirmation(self._view, self._views)

    def _own_seed(self, name: str) -> bytes:
        about = self.occasion.statement("commitment", name)
        promised = self._commitments[name]
        return self._reconstructed(
            "own", name, lambda seed: primitives.commitment(seed, about) == promised
        )

    def _masks_for(self, gone: str) -> Iterator[tuple[bytes, int]]:
        """The masks that cancel what its neighbours added to the sum for a client that is gone."""
        neighbours = [n for n in self._views if n in self._boxes[gone] or gone in self._boxes[n]]
        if not neighbours:
            return
        promised = self._roster[gone].mask_key
        seed = self._reconstructed(
            "keys", gone, lambda seed: primitives.public_key(seed) == promised
        )
        agreed = primitives.agreement(seed)
        for name in neighbours:
            purpose = self.occasion.masking(self._roster_digest, gone, name, self.basis)
            yield agreed(self._roster[name].mask_key, purpose), -1 if name < gone else 1

    def _reconstructed(self, kind: str, owner: str, is_right: Callable[[bytes], bool]) -> bytes:
        """A client's secret; one wrong share among more than are needed does no harm."""
        holders = [owner, *sorted(self._boxes[owner])]
        needed = quorum(len(holders))
        places = {holder: place for place, holder in enumerate(holders, 1)}
        received = self._shares[kind].get(owner, [])
        if len(received) < needed:
            raise SumFailedError(
                f"{len(received)} clients gave out their share of {owner}, {needed} are needed"
            )
        shares = sorted((places[name], share) for name, share in received)
        for first in range(len(shares) if len(shares) > needed else 1):
            seed = primitives.combined([*shares[first:], *shares[:first]][:needed])
            if is_right(seed):
                return seed
        raise SumFailedError(
            f"the shares of {owner} do not fit together: it sealed wrong ones, or a client gave "
            "out a wrong share"
        )

    def _enough(self, names: list[str], what: str) -> list[str]:
        if len(names) < (needed := max(MIN_COHORT, quorum(len(self._roster)))):
            raise SumFailedError(
                f"{len(names)} of {len(self._roster)} clients {what}, {needed} are needed"
            )
        return names
