"""`orchestra-embed`: embeddings of images as a file, and a page to look at."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import get_args

from orchestra_flwr.config import ConfigError
from orchestra_flwr.console.printable import printable
from orchestra_flwr.console.text import counted, size
from orchestra_flwr.data.image_files.archive import Archive, ImageFile
from orchestra_flwr.data.image_files.decoding import any_readable
from orchestra_flwr.files import at_home
from orchestra_flwr.folder_lock import FolderInUseError, locked
from orchestra_flwr.models import Encoder
from orchestra_flwr.use.embedding_files import (
    Embeddings,
    add_near_duplicates,
    check_names,
    embedded_before,
    read_embeddings,
    write_embeddings,
)
from orchestra_flwr.use.image_embeddings import (
    EmbeddedImages,
    embed,
    key_of,
    loaded_encoder,
    opened_images,
)
from orchestra_flwr.use.page import write_page
from orchestra_flwr.use.use_config import EmbedConfig, Format, UseConfig

NAMED_FILES = 10  # broken files that are printed; embeddings.json has all


def run_embed(config: EmbedConfig) -> None:
    """Embeds the images that a configuration names, and writes their page.

    Raises:
        ConfigError: no encoder, no images, or a folder that another process uses.
        OSError: a file cannot be written.
        ValueError: features that are not finite.
    """
    with embedded_images(config, *loaded_encoder(config)) as embedded:
        if config.page.write:
            print("making the page (a minute or two for 5,000 images)", file=sys.stderr, flush=True)
            title = printable(_whole(config.images).name)
            page, duplicates = write_page(embedded.folder, embedded, config.page, title)
            add_near_duplicates(embedded.folder, duplicates)
            print(_near_duplicates(duplicates))
            print(f"page: {printable(str(page))} ({size(page.stat().st_size)})")


@contextmanager
def embedded_images(
    config: UseConfig, encoder: Encoder, digest: str, *, any_format: bool = False
) -> Iterator[EmbeddedImages]:
    """The images of a configuration and their embeddings, made unless they exist already.

    Args:
        encoder: of the configuration; it and its `digest` are those of :func:`loaded_encoder`.
        any_format: whether existing ones may have another format than `config.format`.

    Raises:
        ConfigError: no images, or a folder that another process uses.
        OSError: a file cannot be written.
        ValueError: features that are not finite.
    """
    with opened_images(config.images, "images") as (archive, listed):
        files = without_results(listed, config, "images")
        with _own(config.results) as folder:
            key = key_of(digest, archive, files)
            embeddings = _made_or_read(
                config, encoder, archive, files, key=key, any_format=any_format
            )
            names = {printable(file.name): file.name for file in files}
            yield EmbeddedImages(archive, embeddings, names, folder)


def without_results(files: list[ImageFile], config: UseConfig, key: str) -> list[ImageFile]:
    """The files outside of the results' folder, in which the page has pictures of its own.

    Raises:
        ConfigError: all files are inside it.
    """
    root = getattr(config, key)
    images, results = _whole(root), _whole(str(config.results))
    if not results.is_relative_to(images):
        return files
    inside = results.relative_to(images).parts
    images_left = [file for file in files if file.parts[: len(inside)] != inside]
    if not images_left:
        raise ConfigError(
            f"folder={config.results}: holds all of {key}={root}; must be another folder, or the "
            "page's pictures would count as images the next time"
        )
    return images_left


def _whole(path: str) -> Path:
    return at_home(path).resolve()


def _check_same_images(config: UseConfig) -> None:
    """Refuses to replace the results of other images, which still exist, under the same name."""
    earlier, here = embedded_before(config.results), _whole(config.images)
    if config.folder or earlier is None or earlier == printable(str(here)):
        return
    # Versions before 0.3 wrote the path as it was typed.
    if (there := _whole(earlier)).exists() and there != here:
        raise ConfigError(
            f"images={config.images}: {config.results} holds the results of {earlier}; folder= "
            "names another place"
        )


def _made_or_read(
    config: UseConfig,
    encoder: Encoder,
    archive: Archive,
    files: list[ImageFile],
    *,
    key: str,
    any_format: bool,
) -> Embeddings:
    folder = config.results
    format, embeddings = _there(config, key, any_format)
    names = [file.name for file in files]
    if embeddings is None or any_readable(embeddings.unread, names, archive.read):
        check_names([printable(name) for name in names], format)
        _check_same_images(config)
        unfinished = folder / "unfinished"
        size = config.batch_size
        embeddings = embed(encoder, archive, files, batch_size=size, unfinished=unfinished, key=key)
        encoder_file = str(config.encoder)
        write_embeddings(
            folder,
            embeddings,
            format=format,
            images=printable(str(_whole(config.images))),
            encoder=printable(encoder_file),
            key=key,
        )
        shutil.rmtree(unfinished, ignore_errors=True)
    _report(folder / f"embeddings.{format}", embeddings)
    return embeddings


def _there(config: UseConfig, key: str, any_format: bool) -> tuple[Format, Embeddings | None]:
    """The existing embeddings and their format, else None and the format of new ones."""
    for format in get_args(Format) if any_format else (config.format,):
        with suppress(ImportError):  # they are made anew where their format cannot be read
            embeddings = read_embeddings(config.results, key=key, format=format)
            if embeddings is not None:
                return format, embeddings
    return config.format, None


def _near_duplicates(groups: list[list[str]]) -> str:
    count = sum(map(len, groups))
    if not groups:
        return "near-duplicates on the page: none"
    amount = f"{count:,} images in {counted(len(groups), 'group')}"
    return f"near-duplicates on the page: {amount}, named in embeddings.json"


def _report(path: Path, embeddings: Embeddings) -> None:
    count, dim = embeddings.vectors.shape
    print(f"embeddings: {printable(str(path))} ({counted(count, 'image')}, {dim} numbers each)")
    broken = embeddings.broken
    if broken:
        print(f"left out, because they cannot be read: {counted(len(broken), 'file')}")
        for name, reason in broken[:NAMED_FILES]:
            print(f"  {name}: {reason}")
        if len(broken) > NAMED_FILES:
            print(f"  and {len(broken) - NAMED_FILES} more, named in embeddings.json")


@contextmanager
def _own(folder: Path) -> Iterator[Path]:
    """Makes the folder and locks it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"folder={folder}: cannot be made ({error.strerror})") from None
    try:
        with locked(folder):
            yield folder
    except FolderInUseError as owner:
        raise ConfigError(f"folder={folder}: is in use by {owner}") from None
