"""Sends every real client the encoder that it helped to train, with its model card."""

import time
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from orchestra_flwr.config import Config, read_config_file
from orchestra_flwr.console.text import listed
from orchestra_flwr.export.card_facts import CardFacts
from orchestra_flwr.export.model_card import card
from orchestra_flwr.federation.messages.failures import Failure, describe_error
from orchestra_flwr.federation.messages.fields import (
    ARRAYS,
    CONFIG,
    ENCODER,
    ENCODER_CARD,
    ENCODER_KIND,
    ENCODER_SIZE,
    STORED,
    TOO_LARGE,
    WANTED,
)
from orchestra_flwr.federation.server.members import ConnectedMembers
from orchestra_flwr.files import read_json
from orchestra_flwr.fingerprints import file_sha256
from orchestra_flwr.flower.arrays import payload_bytes, to_record
from orchestra_flwr.flower.fleet import time_to_live
from orchestra_flwr.reporting import RunFolder

POLL_SECONDS = 0.5
# That an offer, which has no arrays, waits for its answer: as long as the wait for those that are
# away lasts, but a client that is here needs some time to answer.
OFFER_SECONDS, LEAST_OFFER_SECONDS = 30.0, 10.0
MAX_NAMES = 20  # in a line
SHARED = "shared"  # in the run folder: the encoder that was sent during the run


@dataclass
class EncoderDelivery:
    """Offers an encoder to each client, and sends it to those that want it.

    A client that already has it, for instance from a server that was killed after sending it, is
    sent nothing. It answers with one of three words; any other is not an answer.
    """

    grid: Grid  # the SuperLink's
    members: ConnectedMembers
    folder: RunFolder
    # Of the run. A client may take `federation.round_timeout` to fetch the encoder, and
    # `federation.min_clients` are waited for even if none has been met, as when a finished run is
    # resumed; with `federation.rounds=0` those alone that have been met.
    config: Config
    show: Callable[[str], None]  # takes a line about what happened
    _: KW_ONLY
    every: int | None  # sent also whenever so many rounds have passed; None: only at the end
    wait: float  # seconds that the end waits for clients that are away
    # Takes how far delivery is: the encoder's SHA-256, the names of the clients that have it and of
    # those that do not, and whether delivery is over.
    note: Callable[[str, list[str], list[str], bool], None] = lambda *values: None
    queued: bool = False  # whether a queue's server sends it to clients that come later

    def __post_init__(self) -> None:
        self._bytes = 0
        # What :meth:`at_the_end` returned before the run was resumed
        self.before: dict[str, Any] | None = None
        with suppress(OSError, ValueError):
            self.before = read_json(self.folder.summary).get("encoder_sent")

    def place(self, round_: int, rounds: int) -> RunFolder | None:
        """Where to save the encoder that is sent after a round; None: none is sent."""
        if self.every is None or round_ % self.every or not 0 < round_ < rounds:
            return None
        folder = RunFolder(self.folder.path / SHARED)
        folder.path.mkdir(exist_ok=True)
        return folder

    def during(self, encoder: Path, at_work: Set[str] = frozenset()) -> None:
        """Sends an encoder to the clients that are here, except those that cannot answer yet.

        Args:
            at_work: clients that train; late ones are left out as well.
        """
        busy = {*at_work, *self.members.late}
        self._report(self._send(encoder, wait=0, busy=busy), set())

    def at_the_end(self) -> dict[str, Any]:
        """Sends the run's encoder, also to clients that come back within the wait.

        Returns:
            For the summary: the `sha256` of the encoder, the names of the `clients` that have it
            and of those `without` it, of which some are `away`, and `bytes_down`, all that was
            sent for it since the run began or was resumed.
        """
        digest = file_sha256(self.folder.encoder)
        # If a finished run is resumed, the clients that were away at its end are waited for.
        same = self.before if self.before and self.before.get("sha256") == digest else {}
        expected = self.members.met | {*same.get("away", ())}
        answers = self._send(self.folder.encoder, wait=self.wait, expected=expected)
        away = self._able(self.members.met | expected) - answers.keys()
        self._report(answers, away)
        holders = {name for name, word in answers.items() if word == STORED}
        without = {*away, *answers} - holders
        holders |= {*same.get("clients", ())} - without  # those that have not been met since
        without |= self._able({*same.get("without", ())}) - holders
        return {
            "sha256": digest,
            "clients": sorted(holders),
            "without": sorted(without),
            "away": sorted(away),
            "bytes_down": self._bytes,
        }

    def _send(
        self,
        encoder: Path,
        wait: float,
        expected: Set[str] = frozenset(),
        busy: Set[str] = frozenset(),
    ) -> dict[str, str]:
        """Returns the word of each client that answered; for a failure, what is shown of it."""
        federation = self.config.federation
        # A run without rounds needs no clients, and so waits for none to come.
        least = federation.min_clients or 0 if federation.rounds else 0
        description, digest = encoder.with_suffix(".json").read_text(), file_sha256(encoder)
        offer = ConfigRecord(
            {
                ENCODER: description,
                ENCODER_CARD: self._card(encoder),
                ENCODER_SIZE: encoder.stat().st_size,
            }
        )
        arrays: ArrayRecord | None = None
        waits = False
        answers: dict[str, str] = {}
        deadline = time.monotonic() + wait
        self.note(digest, [], sorted(self._able(self.members.met | expected)), False)
        while True:
            not_asked = answers.keys() | busy
            here = {n: i for n, i in self.members.all_present().items() if n not in not_asked}
            left = deadline - time.monotonic() if wait else self.wait
            patience = min(OFFER_SECONDS, max(LEAST_OFFER_SECONDS, left))
            words = dict(self._ask(here, RecordDict({CONFIG: offer}), patience))
            if wanted := {name: here[name] for name, word in words.items() if word == WANTED}:
                arrays = arrays or to_record({ENCODER: np.fromfile(encoder, np.uint8)})
                content = RecordDict({ARRAYS: arrays, CONFIG: offer})
                words |= dict.fromkeys(wanted, "")
                words |= dict(self._ask(wanted, content, federation.round_timeout))
            answers |= {name: word for name, word in words.items() if word}
            missing = self._able(self.members.met | expected) - answers.keys()
            over = not missing and len(answers) >= least
            over &= not self.members.some_are_new
            over |= time.monotonic() >= deadline
            have = {name for name, word in answers.items() if word == STORED}
            self.note(digest, sorted(have), sorted({*missing, *answers} - have), over)
            if over:
                return answers
            if missing and not waits:
                waits = True
                names = listed(sorted(missing), MAX_NAMES)
                self.show(f"waiting for {names}, to send the encoder; at most {wait:g} s")
            time.sleep(POLL_SECONDS)

    def _able(self, names: Set[str]) -> Set[str]:
        """Those of the clients that can come: not those whose keys were revoked."""
        keys = self.members.keys()
        return names if keys is None else names & {*keys.values()}

    def _ask(
        self, nodes: Mapping[str, int], content: RecordDict, timeout: float
    ) -> Iterator[tuple[str, str]]:
        """Yields name and word of each client that answers; the others are marked as lost."""
        ttl = time_to_live(timeout)
        messages = [Message(content, node, ENCODER_KIND, ttl=ttl) for node in nodes.values()]
        self._bytes += len(messages) * payload_bytes(content)
        lost: set[str] = set()
        replies = self.grid.send_and_receive(messages, timeout=timeout)
        for name, reply in zip(nodes, replies, strict=True):
            if reply.has_error() and Failure.of(reply.error.code) is None:
                lost.add(name)
            elif reply.has_error():
                yield name, describe_error(reply.error)
            else:
                answer = reply.content.config_records.get(CONFIG, ConfigRecord())
                word = str(answer.get(ENCODER, ""))
                known = word in (STORED, TOO_LARGE, WANTED)
                yield name, word if known else "its answer is unknown here"
        self.members.mark_lost(lost)

    def _card(self, encoder: Path) -> str:
        facts = CardFacts.of(encoder)
        saved = read_config_file(self.folder.path / "config.yaml")
        return card(CardFacts(facts.spec, facts.about, saved, facts.summary))

    def _report(self, answers: Mapping[str, str], away: Set[str]) -> None:
        holders = sorted(name for name, word in answers.items() if word == STORED)
        if holders:
            self.show(f"the encoder is with {listed(holders, MAX_NAMES)}")
        for name, word in sorted(answers.items()):
            if word == TOO_LARGE:
                self.show(f"client {name} does not take the encoder: larger than it allows")
            elif word != STORED:
                self.show(f"client {name} does not have the encoder: {word}")
        if away:
            names = listed(sorted(away), MAX_NAMES)
            self.show(
                f"without the encoder, because they were away: {names}; {self._later()}, or copy "
                "encoder.safetensors and encoder.json to them"
            )

    def _later(self) -> str:
        if self.queued and self.members.verify:  # the queue's server knows them by their keys
            return "those that come back while the queue waits for a run get it then"
        return f"resume={self.folder.path} sends it once more"
