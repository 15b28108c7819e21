"""An encoder in the layout of the Hugging Face hub, as a local folder, and its upload."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from orchestra_flwr.config import ConfigError
from orchestra_flwr.console.printable import printable
from orchestra_flwr.export.card_facts import CardFacts
from orchestra_flwr.export.export_config import ExportConfig
from orchestra_flwr.export.exporter import DESCRIPTION, made_from
from orchestra_flwr.export.model_card import card
from orchestra_flwr.extras import require
from orchestra_flwr.files import replacing, write_atomically
from orchestra_flwr.fingerprints import file_sha256
from orchestra_flwr.models import encoder_of

EXPORTED = ("encoder.onnx", "encoder.int8.onnx", "encoder.pt2")
CARD, WEIGHTS, SPEC, ONNX = "README.md", "encoder.safetensors", "encoder.json", "onnx"


class HubError(RuntimeError):
    """An upload that failed; the text says why."""


def export_to_hub(config: ExportConfig) -> str:
    """Writes the folder that a configuration asks for, and uploads it if asked to.

    Returns:
        Where it is: a folder, or an address.

    Raises:
        ConfigError: no encoder, huggingface_hub is not installed, the folder holds other files (a
            run's), or a file was exported from another encoder, such as one of fewer rounds.
        HubError: the upload failed; the folder is there.
        OSError: a file cannot be written.
    """
    if config.push_to_hub:
        require("push_to_hub", "huggingface", "huggingface_hub")
    encoder_of(config)  # refuses a damaged one
    files = _write_folder(config)
    if config.push_to_hub:
        return push(config.exported, files, config.push_to_hub, private=config.private)
    return str(config.exported)


def _write_folder(config: ExportConfig) -> list[Path]:
    """Writes model card, weights and exported files; returns them, the card first.

    Nothing else of a run is in the folder. The card is made from the run's `config.yaml` and
    `summary.json`, where these exist.
    """
    encoder, exported, folder = config.encoder, config.beside("export"), config.exported
    _check_nothing_else(folder)
    copied = _exported_of(encoder, exported)
    text = card(CardFacts.of(encoder), config.push_to_hub or "", config.license or "")
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / CARD]
    write_atomically(files[0], text.encode())
    sources = [
        (encoder, folder / WEIGHTS),
        (encoder.with_suffix(".json"), folder / SPEC),
        *((exported / name, folder / ONNX / name) for name in copied),
    ]
    for source, target in sources:
        target.parent.mkdir(exist_ok=True)
        with replacing(target) as temporary:
            shutil.copyfile(source, temporary)
        files.append(target)
    for name in {*EXPORTED, DESCRIPTION} - {*copied}:  # of an earlier upload
        (folder / ONNX / name).unlink(missing_ok=True)
    return files


def _check_nothing_else(folder: Path) -> None:
    """Refuses a folder with other visible files, which would seem to be published too."""
    ours = {folder: {CARD, WEIGHTS, SPEC, ONNX}, folder / ONNX: {*EXPORTED, DESCRIPTION}}
    for place, names in ours.items():
        there = [path.name for path in place.iterdir()] if place.is_dir() else []
        others = sorted(name for name in there if name not in names and not name.startswith("."))
        if others:
            raise ConfigError(
                f"folder={folder}: holds {printable(others[0])}, which is not of format=hub; must "
                "be a new folder, or one that format=hub has written"
            )


def _exported_of(encoder: Path, folder: Path) -> list[str]:
    """The names of the exported files in a folder, and their description's."""
    names = [name for name in EXPORTED if (folder / name).is_file()]
    digests, digest = made_from(folder), file_sha256(encoder)
    for name in names:
        if digests.get(name) != digest:
            raise ConfigError(
                f"{folder / name} was exported from another encoder than {encoder}: export it "
                "again, or remove it"
            )
    return [*names, DESCRIPTION] if names else []


def push(folder: Path, files: Sequence[Path], repository: str, *, private: bool) -> str:
    """Uploads files as one commit; the repository is created if there is none.

    The account is that of huggingface_hub: its `login`, or HF_TOKEN.

    Args:
        folder: becomes the root of the repository.
        files: the files in it to upload; no others are.
        repository: "owner/name".
        private: whether a newly created repository is private.

    Returns:
        The address of the commit.

    Raises:
        ConfigError: the name is no "owner/name".
        HubError: the hub refused it, or cannot be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError

    api = HfApi(library_name="orchestra_flwr")
    names = [file.relative_to(folder).as_posix() for file in files]
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        return str(api.upload_folder(repo_id=repository, folder_path=folder, allow_patterns=names))
    except HFValidationError as error:
        raise ConfigError(f"push_to_hub={repository}: {_line(error)}") from None
    except Exception as error:  # its own, or of its HTTP client: httpx, since release 2 httpx2
        raise HubError(f"push_to_hub={repository}: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
