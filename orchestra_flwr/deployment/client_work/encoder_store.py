"""The encoder that the server sends: checked before it is stored, and stored as data alone."""

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from flwr.app import RecordDict

from orchestra_flwr.console.printable import printable_lines
from orchestra_flwr.deployment.keys.key_files import quoted
from orchestra_flwr.federation.messages import fields
from orchestra_flwr.files import make_private_folder, sync_folder, write_atomically
from orchestra_flwr.fingerprints import file_sha256
from orchestra_flwr.flower.arrays import from_record
from orchestra_flwr.models import load_encoder
from orchestra_flwr.models.encoder_description import (
    MAX_DESCRIPTION,
    read_description,
    take_upcoming,
    upcoming,
)

WEIGHTS, DESCRIPTION, CARD = "encoder.safetensors", "encoder.json", "README.md"


class EncoderStore:
    """The folder `encoder` of a client, with weights, description and model card.

    An encoder has at most `limit` bytes; of users' packages only `plugins` are imported for it.
    """

    def __init__(self, folder: Path, limit: float, plugins: Sequence[str]) -> None:
        self.folder = folder / "encoder"
        self._limit = limit
        self._plugins = plugins

    def answer(self, content: RecordDict, report: Callable[[str], None]) -> str:
        """The word for an offer, or for an encoder that has come with its offer.

        Raises:
            OSError: it cannot be written.
            ValueError: it is damaged, or no encoder; nothing of it is stored.
        """
        offer = content.config_records[fields.CONFIG]
        description, card = str(offer[fields.ENCODER]), str(offer[fields.ENCODER_CARD])
        if max(len(description), len(card)) > MAX_DESCRIPTION:
            raise ValueError(f"the encoder's description has more than {MAX_DESCRIPTION} letters")
        arrays = content.array_records.pop(fields.ARRAYS, None)
        weights = from_record(arrays)[fields.ENCODER].tobytes() if arrays else b""
        size = max(int(str(offer[fields.ENCODER_SIZE])), len(weights))
        if size > self._limit:
            report(
                f"the server's encoder of {size / 1e6:.1f} MB is not stored: "
                f"encoder_megabytes={self._limit / 1e6:g}"
            )
            return fields.TOO_LARGE
        if not arrays:
            return fields.STORED if self._has(description) else fields.WANTED
        shown = printable_lines(card).encode()  # nothing that a terminal would obey
        self._store({WEIGHTS: weights, DESCRIPTION: description.encode(), CARD: shown})
        place = quoted(self.folder.absolute())  # a service is started in another folder
        report(
            f"the encoder is here: orchestra-embed run={place} images=..., "
            f"orchestra-export run={place}"
        )
        return fields.STORED

    def _has(self, description: str) -> bool:
        """Whether this very encoder is here, undamaged."""
        try:
            if (self.folder / DESCRIPTION).read_text() != description:
                return False
            digest = read_description(self.folder / DESCRIPTION).get("weights_sha256")
            return bool(file_sha256(self.folder / WEIGHTS) == digest)
        except (OSError, ValueError):
            return False

    def _store(self, files: dict[str, bytes]) -> None:
        """Writes the files elsewhere, builds an encoder from them, then moves them here."""
        beside = self.folder / ".received"
        shutil.rmtree(beside, ignore_errors=True)
        try:
            make_private_folder(self.folder)
            make_private_folder(beside)
            for name, data in files.items():
                write_atomically(beside / name, data, mode=0o600)
            if not read_description(beside / DESCRIPTION).get("weights_sha256"):
                raise ValueError("the encoder's description names no checksum of its weights")
            load_encoder(beside / WEIGHTS, plugins=self._plugins)
            description = self.folder / DESCRIPTION
            (beside / DESCRIPTION).replace(upcoming(description))
            for name in (WEIGHTS, CARD):
                sync_folder(self.folder)  # one after the other, whenever the power is cut
                (beside / name).replace(self.folder / name)
            sync_folder(self.folder)
            take_upcoming(description)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
            with suppress(OSError):  # an encoder is in it: only an empty folder goes
                self.folder.rmdir()
