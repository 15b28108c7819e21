"""Embeddings on disk: one file in a format that other tools read, and its description as JSON."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from orchestra_flwr.config import ConfigError
from orchestra_flwr.files import read_json, replacing, write_json
from orchestra_flwr.fingerprints import file_sha256
from orchestra_flwr.tensor_files import save_plain
from orchestra_flwr.use.use_config import Format

DESCRIPTION = "embeddings.json"
MAX_NAMES_SIZE = 99_000_000  # bytes; safetensors has names in its header, at most 100 million


@dataclass(frozen=True)
class Embeddings:
    """Features of images.

    Attributes:
        paths: of the n images, below the folder or zip that they are in, with slashes.
        vectors: (n, dim) float32, as the encoder gives them, on the CPU.
        broken: (path, reason) of each file that could not be read.
        unread: paths of the broken files that may be readable another time.
    """

    paths: tuple[str, ...]
    vectors: Tensor
    broken: tuple[tuple[str, str], ...] = ()
    unread: tuple[str, ...] = ()


def check_names(names: Sequence[str], format: Format) -> None:
    """Refuses more names than a format can hold, before anything is computed.

    Raises:
        ConfigError: says which formats hold any number.
    """
    if format != "safetensors":
        return
    length = len(json.dumps(_names_as_text(names), ensure_ascii=False).encode())
    if length > MAX_NAMES_SIZE:
        raise ConfigError(
            f"format=safetensors: the names of {len(names):,} images take {length / 1e6:.0f} MB, "
            f"it holds at most {MAX_NAMES_SIZE / 1e6:.0f}: give format=npz or format=parquet"
        )


def write_embeddings(
    folder: Path, embeddings: Embeddings, *, format: Format, images: str, encoder: str, key: str
) -> Path:
    """Writes or replaces `embeddings.<format>` and its description; returns the file's path.

    Earlier files in other formats, of another encoder or other images, are removed.

    Args:
        folder: of both.
        images: the absolute path of the folder or zip of the images, for the description.
        encoder: the encoder's file, for the description.
        key: of encoder and image files; with another one the embeddings are out of date.

    Raises:
        OSError: names the file, which is unchanged.
    """
    path = folder / f"embeddings.{format}"
    with replacing(path) as temporary:
        WRITERS[format](temporary, embeddings)
        digest = file_sha256(temporary)
    earlier = _described(folder)
    described = {
        "file": path.name,
        "images": images,
        "encoder": encoder,
        "count": len(embeddings.paths),
        "dim": embeddings.vectors.shape[1],
        "broken": embeddings.broken,
        "key": key,
        "sha256": digest,
        "unread": embeddings.unread,
    }
    write_json(folder / DESCRIPTION, described)
    if earlier.get("key") not in (None, key):  # all formats: they may have been written in turn
        for other in WRITERS:
            if other != format:
                (folder / f"embeddings.{other}").unlink(missing_ok=True)
    return path


def add_near_duplicates(folder: Path, groups: Sequence[Sequence[str]]) -> None:
    """Writes the paths of near-duplicates into the description of the embeddings.

    Raises:
        OSError: names the file, which is unchanged.
    """
    write_json(folder / DESCRIPTION, {**_description(folder), "near_duplicates": groups})


def read_embeddings(folder: Path, *, key: str, format: Format) -> Embeddings | None:
    """The existing embeddings; None if they are missing, damaged, or have another key or format."""
    try:
        described = _description(folder)
        path = folder / f"embeddings.{format}"
        broken = tuple((name, reason) for name, reason in described["broken"])
        unread = described.get("unread")
        if described["key"] != key or described["file"] != path.name:
            return None
        if broken and unread is None:  # of an earlier version, which does not say why
            return None
        if file_sha256(path) != described["sha256"]:
            return None
    except (OSError, ValueError, TypeError, KeyError):
        return None
    paths, vectors = READERS[format](path)
    return Embeddings(tuple(paths), vectors, broken, tuple(unread or ()))


def embedded_before(folder: Path) -> str | None:
    """The path of the images whose embeddings a folder holds; None without any."""
    images = _described(folder).get("images")
    return None if images is None else str(images)


def _described(folder: Path) -> dict[str, Any]:
    """The description; empty where there is none that can be read."""
    with suppress(OSError, ValueError):
        return _description(folder)
    return {}


def _description(folder: Path) -> dict[str, Any]:
    """The description at any size, as the embeddings: it names all broken files and duplicates."""
    path = folder / DESCRIPTION
    return read_json(path, path.stat().st_size)


def _write_safetensors(path: Path, embeddings: Embeddings) -> None:
    names = _names_as_text(embeddings.paths)
    save_plain(path, {"embeddings": embeddings.vectors.contiguous()}, {"paths": names})


def _names_as_text(names: Sequence[str]) -> str:
    return json.dumps(names, ensure_ascii=False)


def _read_safetensors(path: Path) -> tuple[Sequence[str], Tensor]:
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["paths"]), file.get_tensor("embeddings")


def _write_npz(path: Path, embeddings: Embeddings) -> None:
    with path.open("wb") as file:  # numpy adds .npz to names without it
        np.savez(
            file,
            embeddings=embeddings.vectors.numpy(),
            paths=np.array(embeddings.paths, dtype=np.str_),
        )


def _read_npz(path: Path) -> tuple[Sequence[str], Tensor]:
    with np.load(path, allow_pickle=False) as file:
        return file["paths"].tolist(), torch.from_numpy(file["embeddings"])


def _write_parquet(path: Path, embeddings: Embeddings) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    flat = pa.array(embeddings.vectors.numpy().reshape(-1))
    column = pa.FixedSizeListArray.from_arrays(flat, embeddings.vectors.shape[1])
    pq.write_table(pa.table({"path": list(embeddings.paths), "embedding": column}), path)


def _read_parquet(path: Path) -> tuple[Sequence[str], Tensor]:
    import pyarrow.parquet as pq

    table: Any = pq.read_table(path).combine_chunks()
    values = table["embedding"].chunk(0).flatten().to_numpy().copy()
    return table["path"].to_pylist(), torch.from_numpy(values).view(table.num_rows, -1)


WRITERS = {"safetensors": _write_safetensors, "npz": _write_npz, "parquet": _write_parquet}
READERS = {"safetensors": _read_safetensors, "npz": _read_npz, "parquet": _read_parquet}
