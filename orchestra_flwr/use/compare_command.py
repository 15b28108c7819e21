"""`orchestra-compare`: whether training helped, on images of one's own."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from orchestra_flwr.config import AugmentationConfig, Config, ConfigError, read_run
from orchestra_flwr.console.image_count import image_count
from orchestra_flwr.console.printable import printable
from orchestra_flwr.console.text import ACCURACIES, MORE_IS_BETTER, SCORE
from orchestra_flwr.console.whole_table import print_whole
from orchestra_flwr.data.image_files.archive import Archive, ImageFile
from orchestra_flwr.data.image_files.decoding import decode_files
from orchestra_flwr.evaluation import label_free_scores
from orchestra_flwr.files import at_home, encoder_file, read_json, write_json
from orchestra_flwr.methods import ordered_backbones
from orchestra_flwr.methods.labels import with_class_names
from orchestra_flwr.models import (
    Backbone,
    Encoder,
    encoder_at,
    extract_features,
    recalibrated,
    tensors_sha256,
)
from orchestra_flwr.models.batch_norm import has_statistics
from orchestra_flwr.models.pretrained import pretrained_encoder
from orchestra_flwr.reporting import check_place
from orchestra_flwr.seeding import drawn, torch_generator
from orchestra_flwr.square_image import fit_channels
from orchestra_flwr.training import first_weights, resolve_device, starting_learner, torch_threads
from orchestra_flwr.use.encoder_comparison import Accuracy, Comparison, compare
from orchestra_flwr.use.image_embeddings import opened_images
from orchestra_flwr.use.label_files import check_enough, known_labels, labels_by_folder, read_table
from orchestra_flwr.use.neighbours_page import write_neighbours_page
from orchestra_flwr.use.use_config import CompareConfig

FOLDERS = "folders"  # labels= of images in class folders
MIN_IMAGES = 10
TITLES = ACCURACIES | {
    "effective_rank": "effective rank",
    "alignment": "alignment",
    "uniformity": "uniformity",
    "score": SCORE,
}


def run_compare(config: CompareConfig) -> None:
    """Compares the encoders that a configuration names, prints a table and writes a page.

    Raises:
        ConfigError: no encoder, no images, labels that cannot be used, or no place for results.
        OSError: a file cannot be written.
        ValueError: features that are not finite.
    """
    device = resolve_device(config.device)
    file = encoder_file(config.after)
    check_place(config.results, file)
    after = encoder_at(f"after={config.after}", file, device, config.plugins)
    with opened_images(config.images, "images") as (archive, files):
        labels = _labels(config, files)
        start = _before(config, device)  # before images are decoded, which may take minutes
        names, images = _images(config, archive, files, labels, after.spec.image_size)
        of_image = None if labels is None else [labels[printable(name)] for name in names]
        before = start(images)
        encoders = [(before, _fitting(before, after, archive, names, images)), (after, images)]
        features, scores = zip(*(_measured(config, *pair) for pair in encoders), strict=True)
        comparison = compare(features, scores, of_image, config.seed)
        _print(comparison)  # before it is written: a full disk loses none of it
        folder = config.results
        folder.mkdir(parents=True, exist_ok=True)
        stored = {"before": config.before, "after": config.after, **comparison.as_json()}
        write_json(folder / "comparison.json", stored)
        if config.queries:
            write_neighbours_page(
                folder / "comparison.html",
                comparison,
                names,
                archive.read,
                labels=of_image,
                queries=config.queries,
                seed=config.seed,
            )
    if config.queries:
        print(f"page: {printable(str(folder / 'comparison.html'))}")
    if before.spec.image_size != after.spec.image_size:
        print(_sizes(config, before.spec.image_size, after.spec.image_size))


def _before(config: CompareConfig, device: torch.device) -> Callable[[Tensor], Encoder]:
    """The encoder that `before` names, or that the run of `after` began with.

    Initial BatchNorm statistics are of no images: statistics of the compared images replace them,
    when the returned function gets these.
    """
    if config.before is not None:
        encoder = pretrained_encoder(
            "before",
            config.before,
            weights=config.before_weights,
            size=config.before_size,
            plugins=config.plugins,
        ).to(device)
        return lambda images: encoder
    run = at_home(config.after)
    if not (run / "config.yaml").is_file():
        raise ConfigError(f"before: must be given, after={config.after} is no folder of a run")
    # Names of classes may come from the run's images; no backbone depends on them.
    begun = with_class_names(read_run(run, config.plugins), ("0", "1"))
    method = starting_learner(begun, begun.data.channels).method
    backbone = next(iter(ordered_backbones(method, begun.evaluation.backbone).values()))
    _check_start(run, begun, backbone)

    def of(images: Tensor) -> Encoder:
        fitting = fit_channels(images, begun.data.channels)
        by = begun.data.normalise
        started = has_statistics(backbone)
        begins = backbone if started else recalibrated(backbone, fitting, config.batch_size, by)
        return Encoder.of(begun, begins).to(device)

    return of


def _check_start(run: Path, config: Config, backbone: Backbone) -> None:
    """Refuses weights that have changed since the run began with them."""
    summary = run / "summary.json"
    start = read_json(summary).get("start_sha256") if summary.is_file() else None
    source = first_weights(config)
    if source and start not in (None, tensors_sha256(backbone)):
        raise ConfigError(f"before: must be given, the run began with other weights of {source}")


def _labels(config: CompareConfig, files: list[ImageFile]) -> dict[str, str] | None:
    """The class of each labelled image, by the printed name of its file."""
    if config.labels is None:
        return None
    if config.labels == FOLDERS:
        labels = labels_by_folder(config.labels, files)
    else:
        table, names = read_table(config.labels), {printable(file.name) for file in files}
        labels = known_labels(config.labels, table, config.images, names)
    check_enough(config.labels, labels)
    return labels


def _images(
    config: CompareConfig,
    archive: Archive,
    files: list[ImageFile],
    labels: dict[str, str] | None,
    size: int,
) -> tuple[list[str], Tensor]:
    """Names and (n, 3, size, size) pixels of the compared images: labelled ones, or all."""
    names = [f.name for f in files if labels is None or printable(f.name) in labels]
    is_drawn = len(names) > config.limit
    names = [names[p] for p in drawn(len(names), config.limit, config.seed, "compare")]
    decoded = decode_files(names, archive.read, size)
    names = [names[position] for position in decoded.good]
    if len(names) < MIN_IMAGES:
        raise ConfigError(
            f"images={config.images}: {len(names)} can be read and compared, at least {MIN_IMAGES} "
            "are needed"
        )
    if labels is not None:
        # The drawn images may have too few of a class that has enough in all.
        key = f"{config.labels} limit={config.limit}" if is_drawn else str(config.labels)
        check_enough(key, {name: labels[printable(name)] for name in names})
    return names, decoded.images


def _fitting(
    encoder: Encoder, other: Encoder, archive: Archive, names: Sequence[str], images: Tensor
) -> Tensor:
    """The images in the encoder's size; the other encoder's images, if their size is the same."""
    if encoder.spec.image_size == other.spec.image_size:
        return images
    return decode_files(names, archive.read, encoder.spec.image_size).images


def _measured(
    config: CompareConfig, encoder: Encoder, images: Tensor
) -> tuple[Tensor, dict[str, float]]:
    """(n, dim) features on the CPU, and scores without labels."""
    fitting = fit_channels(images, encoder.spec.channels)
    with torch_threads(), image_count(len(images)) as on_progress:
        features = extract_features(encoder, fitting, config.batch_size, on_progress=on_progress)
        if not torch.isfinite(features).all():
            raise ValueError("an encoder's features are not finite")
        draw = torch_generator(config.seed, "label-free", device=features.device)
        scores = label_free_scores(
            encoder.backbone,
            fitting,
            AugmentationConfig(),
            draw,
            config.batch_size,
            by=encoder.spec.normalise,
        )
    return features.cpu(), {**asdict(scores), "score": scores.score}


def _print(comparison: Comparison) -> None:
    table = Table(box=box.MARKDOWN)
    for column in ("score", "before", "after", "difference"):
        table.add_column(column, justify="left" if column == "score" else "right")
    for name, accuracy in comparison.accuracies.items():
        table.add_row(TITLES[name], *_accuracy(accuracy))
    for name, (before, after) in comparison.label_free.items():
        table.add_row(TITLES[name], f"{before:.3g}", f"{after:.3g}", f"{after - before:+.3g}")
    print_whole(table, Console())
    print(MORE_IS_BETTER)
    print(f"nearest neighbours in common: {100 * comparison.neighbours_in_common:.0f} %")
    print(comparison.verdict)


def _sizes(config: CompareConfig, before: int, after: int) -> str:
    """What a reader must know who takes the difference for that of training."""
    is_named = config.before is not None and not at_home(config.before).exists()
    cure = f"; before_size={after} compares them at the same size" if is_named else ""
    return (
        f"before sees {before} x {before} pixels of each image and after {after} x {after}, so the "
        f"difference is not that of training alone{cure}"
    )


def _accuracy(accuracy: Accuracy) -> tuple[str, str, str]:
    low, high = 100 * accuracy.low, 100 * accuracy.high
    difference = 100 * (accuracy.after - accuracy.before)
    return (
        f"{100 * accuracy.before:.1f} %",
        f"{100 * accuracy.after:.1f} %",
        f"{difference:+.1f} ({low:+.1f} to {high:+.1f})",
    )
