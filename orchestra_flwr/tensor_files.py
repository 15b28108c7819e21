"""Safetensors files that hold their own checksum, so that every changed byte is detected.

Any reader of safetensors opens them. Their metadata has one entry, `checked`: the SHA-256 of the
whole file, computed with zeros in the place of the digest, then the values as JSON. A checksum in a
second file could be written without the first.
"""

import errno
import hashlib
import json
import mmap
import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from orchestra_flwr.files import replacing

ENTRY = "checked"
MARKER = f'"{ENTRY}":"'.encode()  # inside of a name or a value quotes are escaped
DIGITS = 64
ZEROS = b"0" * DIGITS


class DamagedFileError(ValueError):
    """A file that is not as it was written; the message names it."""


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, str], *, mode: int | None = None
) -> None:
    """Replaces `path` in one step by named tensors, on any device, and named texts.

    Raises:
        OSError: names `path`; what was there before is still there.
    """
    stored = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    with replacing(path, mode=mode) as temporary:
        entry = ZEROS.decode() + json.dumps(dict(values))
        save_plain(temporary, stored, {ENTRY: entry})
        with temporary.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
            start = content.find(MARKER) + len(MARKER)
            content[start : start + DIGITS] = _digest(content, start).encode()
            content.flush()


def save_plain(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes tensors and texts as plain safetensors, without a checksum.

    Args:
        path: may be the temporary file of :func:`replacing`, which names the file in its place.

    Raises:
        OSError: names `path`.
    """
    try:
        save_file(dict(tensors), path, None if metadata is None else dict(metadata))
    except SafetensorError as error:  # a full disk, for example: "... (os error 28)"
        code = re.search(r"os error (\d+)", str(error))
        raise OSError(int(code[1]) if code else errno.EIO, str(error), str(path)) from error


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors, on the CPU, and the values that :func:`save_tensors` wrote.

    Raises:
        OSError: the file is missing or cannot be read.
        DamagedFileError: it is not as it was written.
    """
    values = read_values(path)
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, values  # noqa: SIM118


def read_values(path: Path) -> dict[str, str]:
    """The values alone; checks and errors as in :func:`load_tensors`."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
            header = 8 + int.from_bytes(content[:8], "little")
            start = content.find(MARKER, 0, min(header, len(content))) + len(MARKER)
            if start >= len(MARKER) and content[start : start + DIGITS] != (
                _digest(content, start).encode()
            ):
                raise DamagedFileError(f"{path} is damaged: its checksum is wrong")
        with safe_open(path, framework="pt") as tensors:
            metadata: dict[str, str] = tensors.metadata() or {}
        if ENTRY not in metadata:
            raise DamagedFileError(f"{path} is damaged: it has no checksum")
        return dict(json.loads(metadata[ENTRY][DIGITS:]))
    except DamagedFileError:
        raise
    except (SafetensorError, ValueError, TypeError) as error:  # an empty file cannot be mapped
        raise DamagedFileError(f"{path} is damaged: {' '.join(str(error).split())}") from None


def _digest(content: mmap.mmap, start: int) -> str:
    """The SHA-256 of a file with zeros in the place of its digest, from `start` on."""
    with memoryview(content) as whole:
        digest = hashlib.sha256(whole[:start])
        digest.update(ZEROS)
        digest.update(whole[start + DIGITS :])
    return digest.hexdigest()
