"""Exports a saved encoder, checks the files against torch, and measures them."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from orchestra_flwr.config import AugmentationConfig
from orchestra_flwr.console.phases import phase
from orchestra_flwr.console.printable import print_line
from orchestra_flwr.console.text import ACCURACIES
from orchestra_flwr.data import Dataset, ImageSet, load_dataset
from orchestra_flwr.data.subset import limited
from orchestra_flwr.evaluation.saved import check_images
from orchestra_flwr.evaluation.scores import Labelled, evaluate_by
from orchestra_flwr.export.export_config import ExportConfig
from orchestra_flwr.export.onnx_runtime import onnx_features, quantised
from orchestra_flwr.export.portable import PortableEncoder
from orchestra_flwr.export.programs import ExportError, loaded, onnx_model, program_of, torch_file
from orchestra_flwr.extras import require
from orchestra_flwr.files import read_json, write_atomically, write_json
from orchestra_flwr.fingerprints import file_sha256
from orchestra_flwr.models import Encoder, encoder_of
from orchestra_flwr.training import torch_threads

CHECKED_BATCHES = (1, 2, 5)
TIMED_BATCHES = (1, 32)
WARM_UP, REPEATS = 3, 20  # passes before and while time is taken
DESCRIPTION = "export.json"
ONNX_LIBRARIES = ("onnx", "onnxruntime", "onnxscript")


def export_saved(config: ExportConfig) -> dict[str, Any]:
    """Writes the files that a configuration asks for, and `export.json` beside them.

    A file is written only after its features were compared with torch's.

    Returns:
        What `export.json` holds: `made_from` (the SHA-256 of the encoder that each exported file
        of the folder was made from), `format`, `any_size`, `image_size`, `channels`, `dim`,
        `images` (how many of the run's were available) and `files`, a list of `file`, `bytes`,
        `difference` (see :func:`largest_difference`), `seconds` by batch size, and, where
        there were labelled images, `knn` and `linear`. The first file is the encoder itself.

    Raises:
        ConfigError: no encoder, a library or images that are missing or do not fit.
        ExportError: features differ from torch's, or are not finite.
        OSError: a file cannot be written.
    """
    if config.format == "onnx":
        require("format=onnx", "onnx", *ONNX_LIBRARIES)
    encoder = encoder_of(config)
    digest = file_sha256(config.encoder)  # at once: a run that goes on may replace the file
    dataset = _images(config, encoder) if config.int8 else None
    portable = PortableEncoder(encoder, any_size=config.any_size)
    with torch_threads(), phase("exporting, checking and measuring the encoder", print_line):
        made = _made(config, portable, dataset)
        timed = {b: portable.example(b, side=encoder.spec.image_size) for b in TIMED_BATCHES}
        files: list[dict[str, Any]] = [
            {"file": config.encoder.name, "bytes": config.encoder.stat().st_size}
        ]
        files[0] |= _measured(config, encoder, timed, dataset)
        for path, content, features, difference in made:
            facts = {"file": path.name, "bytes": len(content), "difference": difference}
            files.append(facts | _measured(config, features, timed, dataset))
    for path, content, _, _ in made:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    results = {
        "made_from": made_from(config.exported) | {path.name: digest for path, *_ in made},
        "format": config.format,
        "any_size": config.any_size,
        "image_size": encoder.spec.image_size,
        "channels": encoder.spec.channels,
        "dim": encoder.dim,
        "images": _counts(dataset),
        "files": files,
    }
    write_json(config.exported / DESCRIPTION, results)
    return results


def made_from(folder: Path) -> dict[str, str]:
    """For each exported file of a folder, by name, the SHA-256 of the encoder it was made from."""
    try:
        digests = read_json(folder / DESCRIPTION).get("made_from") or {}
    except (OSError, ValueError):
        return {}
    return {name: digest for name, digest in digests.items() if (folder / name).is_file()}


Features = Callable[[Tensor], Tensor]  # images (B, C, H, W), uint8, to features (B, dim)
Made = tuple[Path, bytes, Features, float]  # path, content, and difference from torch's features


def _made(config: ExportConfig, portable: PortableEncoder, dataset: Dataset | None) -> list[Made]:
    folder = config.exported
    program = program_of(portable)
    if config.format == "torch_export":
        content = torch_file(program)
        return [_checked(config, portable, folder / "encoder.pt2", content, loaded(content))]
    model = onnx_model(program, _about(portable))
    made = [_checked(config, portable, folder / "encoder.onnx", model, onnx_features(model))]
    if dataset is not None:
        seen = limited(dataset.train, config.calibration).images
        small = quantised(model, seen, min(config.evaluation.batch_size, len(seen)))
        features = onnx_features(small)
        distance = largest_difference(portable, features, [seen])
        made.append((folder / "encoder.int8.onnx", small, features, distance))
    return made


def _checked(
    config: ExportConfig, portable: PortableEncoder, path: Path, content: bytes, features: Features
) -> Made:
    """A file, if its features equal torch's for batches of several sizes."""
    batches = [portable.example(batch, seed=batch) for batch in CHECKED_BATCHES]
    distance = largest_difference(portable, features, batches)
    if not distance <= config.tolerance:  # NaN, too
        raise ExportError(
            f"{path.name}: features differ from torch's by {distance:.1e} of the largest one, "
            f"more than tolerance={config.tolerance:g}"
        )
    return path, content, features, distance


def _measured(
    config: ExportConfig, features: Features, timed: Mapping[int, Tensor], dataset: Dataset | None
) -> dict[str, Any]:
    """`seconds` of the `timed` batches, and the accuracies where there are labelled images."""
    figures: dict[str, Any] = {"seconds": {str(b): latency(features, x) for b, x in timed.items()}}
    labelled = _labelled(dataset)
    if labelled is None:
        return figures
    try:
        scores = evaluate_by(
            _Network(features),
            *labelled,
            protocols=("knn", "linear"),
            config=config.evaluation,
            augmentation=AugmentationConfig(),  # of protocols that train on images
        )
    except ValueError as error:
        raise ExportError(f"the accuracy cannot be measured: {error}") from error
    return figures | {key: scores[key] for key in ACCURACIES if key in scores}


class _Network(nn.Module):
    """A function of images as a network."""

    def __init__(self, features: Features) -> None:
        super().__init__()
        self._features = partial(features)  # no child: an exported program refuses eval()

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) uint8 to (B, dim)."""
        return self._features(images)


@torch.inference_mode()
def largest_difference(reference: Features, other: Features, batches: Sequence[Tensor]) -> float:
    """The largest difference of features, as a share of the largest feature of the reference.

    NaN where a feature is not finite.
    """
    expected = torch.cat([reference(images) for images in batches])
    features = torch.cat([other(images) for images in batches])
    return float((features - expected).abs().max() / expected.abs().max())


@torch.inference_mode()
def latency(features: Features, images: Tensor) -> float:
    """Seconds of one batch, the median of several passes after the first ones."""
    seconds = []
    for _ in range(WARM_UP + REPEATS):
        begun = time.perf_counter()
        features(images)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[WARM_UP:])


def _images(config: ExportConfig, encoder: Encoder) -> Dataset:
    """The images that set int8's ranges and measure what it costs."""
    spec = encoder.spec
    data = config.images(spec.image_size)
    check_images(data, channels=spec.channels, image_size=spec.image_size)
    return load_dataset(data)


def _labelled(dataset: Dataset | None) -> tuple[Labelled, Labelled] | None:
    parts: list[ImageSet | None] = [dataset.train, dataset.test] if dataset else []
    labelled = [part.labelled for part in parts if part is not None]
    pairs = [(part.images, part.targets) for part in labelled if part.targets is not None]
    return (pairs[0], pairs[1]) if len(pairs) == 2 else None


def _counts(dataset: Dataset | None) -> Mapping[str, int]:
    if dataset is None:
        return {}
    return {"train": len(dataset.train), "test": len(dataset.test or ())}


def _about(portable: PortableEncoder) -> dict[str, str]:
    """The metadata of an ONNX model: its input and output, for users who have only the file."""
    side = portable.image_size or "any size, resized inside"
    return {
        "input": f"images: uint8 (batch, {portable.channels}, height, width), 0 to 255, {side}",
        "output": f"features: float32 (batch, {portable.dim})",
        "made_by": "orchestra_flwr",
    }
