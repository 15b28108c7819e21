"""Embeds all images of a folder or zip; after an interruption it continues where it was."""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.console.image_count import image_count
from orchestra_flwr.console.printable import printable
from orchestra_flwr.console.quiet_logger import quiet_logger
from orchestra_flwr.data.image_files.archive import Archive, ImageFile
from orchestra_flwr.data.image_files.decoding import Decoded, any_readable, decode_files
from orchestra_flwr.extras import require
from orchestra_flwr.files import at_home
from orchestra_flwr.fingerprints import fingerprint_of
from orchestra_flwr.models import Encoder, encoder_of, extract_features
from orchestra_flwr.square_image import fit_channels
from orchestra_flwr.tensor_files import DamagedFileError, load_tensors, save_tensors
from orchestra_flwr.training import resolve_device, torch_threads
from orchestra_flwr.use.embedding_files import Embeddings
from orchestra_flwr.use.use_config import UseConfig

logger = logging.getLogger("orchestra_flwr.use")

PART = 512  # images in a file of finished work: the most that an interruption costs


@dataclass(frozen=True)
class EmbeddedImages:
    """An archive's images with their embeddings.

    Attributes:
        archive: open as long as the images are used.
        embeddings: of all images that can be read.
        names: the file of each embedding's path.
        folder: where results go; it is locked.
    """

    archive: Archive
    embeddings: Embeddings
    names: Mapping[str, str]
    folder: Path


@contextmanager
def opened_images(root: str, key: str) -> Iterator[tuple[Archive, list[ImageFile]]]:
    """An archive of images and its files.

    Args:
        root: a folder or a zip.
        key: the configuration key that names it, for messages.

    Raises:
        ConfigError: there is none, or it holds no images.
    """
    with Archive(at_home(root), key) as archive:
        files = archive.files()
        if not files:
            raise ConfigError(f"{key}={root}: holds no images")
        yield archive, files


def loaded_encoder(config: UseConfig) -> tuple[Encoder, str]:
    """The encoder of a configuration, and the digest of its weights and description.

    A command reads both once, at its beginning: a run that goes on may replace the files meanwhile.

    Raises:
        ConfigError: there is none, it is damaged, or the library of `config.format` is missing.
    """
    if config.format == "parquet":
        require("format=parquet", "parquet", "pyarrow")
    encoder = encoder_of(config, resolve_device(config.device))
    digest = hashlib.sha256()
    for file in (config.encoder, config.encoder.with_suffix(".json")):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return encoder, digest.hexdigest()


def key_of(encoder: str, archive: Archive, files: Sequence[ImageFile]) -> str:
    """What embeddings depend on: the encoder, by its digest, and the image files."""
    return fingerprint_of(encoder + json.dumps(archive.identity(files)))


def embed(
    encoder: Encoder,
    archive: Archive,
    files: Sequence[ImageFile],
    *,
    batch_size: int,
    unfinished: Path,
    key: str,
) -> Embeddings:
    """Features of all readable images, in the order of the files; progress goes to stderr.

    Results are stored every 512 images, so that the same call continues after an interruption.

    Args:
        files: those to embed.
        unfinished: a folder for the results so far; the caller removes it at the end.
        key: of these embeddings; results under another key are removed.

    Raises:
        ConfigError: no image can be read.
        OSError: a part cannot be written.
        ValueError: features that are not finite.
    """
    _remove_others(unfinished, key)
    names = [file.name for file in files]
    parts = [names[start : start + PART] for start in range(0, len(names), PART)]
    paths = [unfinished / f"{key}-{number:06d}.safetensors" for number in range(len(parts))]
    done = {
        number: part
        for number, path in enumerate(paths)
        if (part := _read_part(path)) and not any_readable(part.unread, parts[number], archive.read)
    }
    finished = sum(len(parts[number]) for number in done)
    missing = [number for number in range(len(parts)) if number not in done]
    size = encoder.spec.image_size
    decoded = _decoded_ahead(archive, [parts[number] for number in missing], size)
    # Progress of decoding would mix with the count of images.
    quiet = quiet_logger("orchestra_flwr.data", logging.WARNING)
    with torch_threads(), quiet, image_count(len(names)) as on_progress:
        on_progress(finished, len(names))
        for number, images in zip(missing, decoded, strict=True):
            done[number] = _embed_part(encoder, parts[number], images, batch_size)
            _write_part(paths[number], done[number])
            finished += len(parts[number])
            on_progress(finished, len(names))
    joined = _joined([done[number] for number in range(len(parts))])
    if not joined.paths:
        raise ConfigError(f"no image can be read ({': '.join(joined.broken[0])})")
    return joined


def _decoded_ahead(
    archive: Archive, parts: Sequence[Sequence[str]], size: int
) -> Iterator[Decoded]:
    """Decodes one part while the one before it is embedded."""
    with ThreadPoolExecutor(1) as pool:
        waiting = [pool.submit(decode_files, part, archive.read, size) for part in parts[:1]]
        for following in [*parts[1:], None]:
            if not waiting:
                return
            images = waiting.pop().result()
            if following is not None:
                waiting.append(pool.submit(decode_files, following, archive.read, size))
            yield images


def _embed_part(
    encoder: Encoder, names: Sequence[str], decoded: Decoded, batch_size: int
) -> Embeddings:
    paths = tuple(printable(names[position]) for position in decoded.good)
    if not paths:
        return Embeddings((), torch.empty(0, encoder.dim), decoded.broken, decoded.unread)
    images = fit_channels(decoded.images, encoder.spec.channels)
    vectors = extract_features(encoder, images, batch_size).cpu()
    wrong = int((~torch.isfinite(vectors)).any(1).sum())
    if wrong:
        raise ValueError(f"the encoder's features of {wrong} images are not finite")
    return Embeddings(paths, vectors, decoded.broken, decoded.unread)


def _remove_others(folder: Path, key: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.safetensors"):
        if not path.name.startswith(f"{key}-"):
            path.unlink()


def _write_part(path: Path, part: Embeddings) -> None:
    values = {"paths": part.paths, "broken": part.broken, "unread": part.unread}
    texts = {name: json.dumps(value) for name, value in values.items()}
    save_tensors(path, {"embeddings": part.vectors}, texts)


def _read_part(path: Path) -> Embeddings | None:
    """A finished part; None if it is missing or damaged and must be made again."""
    try:
        tensors, values = load_tensors(path)
    except FileNotFoundError:
        return None
    except DamagedFileError as error:
        logger.warning("%s; it is made again", error)
        return None
    if "unread" not in values:  # a part of an earlier version
        return None
    paths, unread = (tuple(json.loads(values[name])) for name in ("paths", "unread"))
    broken = tuple((name, reason) for name, reason in json.loads(values["broken"]))
    return Embeddings(paths, tensors["embeddings"], broken, unread)


def _joined(parts: Sequence[Embeddings]) -> Embeddings:
    return Embeddings(
        tuple(path for part in parts for path in part.paths),
        torch.cat([part.vectors for part in parts]),
        tuple(pair for part in parts for pair in part.broken),
        tuple(path for part in parts for path in part.unread),
    )
