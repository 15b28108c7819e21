"""Whole sums in this process, with clients that drop out between any two stages."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from orchestra_flwr.privacy.secure_sums import Confirmations, SumClient, SumServer, primitives
from orchestra_flwr.privacy.secure_sums.sum_client import STAGES

LAYOUT = ((16, 37), (32, 5), (64, 3))


def vector(seed, layout=LAYOUT):
    """Integers of a client, anywhere in their ring."""
    rng = np.random.default_rng(seed)
    return [
        rng.integers(0, 2**bits, size, f"<u{bits // 8}", endpoint=False) for bits, size in layout
    ]


class Sum:
    """One sum, stage by stage; `gone[stage]` do not answer in this stage nor after it."""

    def __init__(self, count, gone=None, layout=LAYOUT, registered=True, vectors=None, round_=1):
        self.names = [f"c{i:03}" for i in range(count)]
        self.gone = gone or {}
        self.vectors = vectors or {name: vector(i, layout) for i, name in enumerate(self.names)}
        self.server = SumServer("run", round_, layout)
        self.keys = {name: Ed25519PrivateKey.generate() for name in self.names}
        self.confirmations = {name: Confirmations() for name in self.names}
        self.clients = {name: self.client(name, registered) for name in self.names}
        self.seen = []  # all that the server gets
        self.basis = self.server.basis = "of all"

    def client(self, name, registered=True, **arguments):
        both = {"sign": self.keys[name].sign, "verify": self.verify} if registered else {}
        return SumClient(name, self.server.occasion, **both, **arguments)

    def verify(self, name, statement, signature):
        try:
            self.keys[name].public_key().verify(signature, statement)
        except (KeyError, InvalidSignature):
            return False
        return True

    def there(self, stage):
        """Those that answer in a stage."""
        until = STAGES[: STAGES.index(stage) + 1]
        left = {name for earlier in until for name in self.gone.get(earlier, ())}
        return [name for name in self.names if name not in left]

    def keys_stage(self):
        for name in self.there("keys"):
            self.server.take_keys(name, self.noted(name, self.clients[name].advertise()))

    def shares_stage(self):
        roster = self.server.roster()
        for name in self.there("shares"):
            self.server.take_shares(name, self.noted(name, self.clients[name].share(roster)))

    def boxes_stage(self):
        for name in sorted({*self.there("boxes")} & {*self.server.sealing}):
            unopened = self.clients[name].hold(**self.server.boxes_for(name))
            self.server.take_holding(name, self.noted(name, unopened))

    def input_stage(self):
        alive = self.server.alive
        for name in sorted({*self.there("input")} & {*alive}):
            masked = [part.copy() for part in self.vectors[name]]
            view = self.clients[name].mask(alive, masked, self.basis)
            self.noted(name, [part.tolist() for part in masked])
            self.server.take_vector(name, masked, view)

    def confirm_stage(self):
        survivors = self.server.survivors
        for name in self.there("confirm"):
            if name in survivors:
                signature = self.clients[name].confirm(survivors, self.confirmations[name])
                self.server.take_signature(name, self.noted(name, signature))

    def unmask_stage(self):
        signatures = self.server.signatures
        for name in self.there("unmask"):
            if name in self.server.survivors:
                views = self.server.views
                shares = self.noted(name, self.clients[name].unmask(signatures, views))
                self.server.take_unmasking(name, shares)

    def sealed_by(self, sender, text):
        """A box for the first client, of a sender that breaks the protocol."""
        client, holder = self.clients[sender], self.names[0]
        about = client._about(sender, holder)
        agreed = primitives.agreement(client._secrets.cipher_seed)
        key = agreed(client._roster[holder].cipher_key, about)
        return primitives.sealed(key, text, about).hex()

    def noted(self, name, reply):
        self.seen.append((name, reply))
        return json.loads(json.dumps(reply))

    def until(self, stage):
        """All stages before this one."""
        for earlier in STAGES[: STAGES.index(stage)]:
            getattr(self, f"{earlier}_stage")()
        return self

    def total(self):
        return self.total_from(STAGES[0])

    def total_from(self, stage):
        """All stages from this one on."""
        for later in STAGES[STAGES.index(stage) :]:
            getattr(self, f"{later}_stage")()
        return self.server.total()

    def expected(self, names):
        parts = zip(*(self.vectors[name] for name in names), strict=True)
        return [np.sum(arrays, axis=0, dtype=arrays[0].dtype) for arrays in parts]


def draw(monkeypatch, degree):
    """Changes how many neighbours each of so many clients draws, as all of them know."""
    for module in ("sum_client", "sum_server"):
        monkeypatch.setattr(f"orchestra_flwr.privacy.secure_sums.{module}.degree", degree)


@pytest.fixture
def tools():
    return SimpleNamespace(Sum=Sum, vector=vector, LAYOUT=LAYOUT, draw=draw)
