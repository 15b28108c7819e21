"""`orchestra-label`: a classifier from a few labels, and its predictions for all other images."""

import json
import shutil
from collections.abc import Collection, Container
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from orchestra_flwr.console.printable import printable
from orchestra_flwr.console.text import counted, listed, percent
from orchestra_flwr.data.image_files.file_table import table_text
from orchestra_flwr.files import at_home, replacing, write_atomically, write_json
from orchestra_flwr.models import Encoder
from orchestra_flwr.tensor_files import save_plain
from orchestra_flwr.use.embed_command import embedded_images, without_results
from orchestra_flwr.use.embedding_files import Embeddings
from orchestra_flwr.use.few_label_classifier import (
    EstimatedAccuracy,
    FewLabelClassifier,
    estimate_accuracy,
    fit_few_labels,
)
from orchestra_flwr.use.image_embeddings import embed, key_of, loaded_encoder, opened_images
from orchestra_flwr.use.label_files import (
    check_enough,
    is_table,
    known_labels,
    labels_by_folder,
    read_table,
)
from orchestra_flwr.use.use_config import LabelConfig


def run_label(config: LabelConfig) -> None:
    """Labels the images that a configuration names, and writes predictions and classifier.

    Raises:
        ConfigError: no encoder, no images, or labels that cannot be used.
        OSError: a file cannot be written.
        ValueError: features that are not finite.
    """
    is_by_path = is_table(config.labels)
    labels_by_path = _labels_by_path(config) if is_by_path else _labels_by_folder(config)
    check_enough(config.labels, labels_by_path)
    encoder, digest = loaded_encoder(config)
    with embedded_images(config, encoder, digest, any_format=True) as embedded:
        everything = embedded.embeddings
        if is_by_path:
            labelled = [path in labels_by_path for path in everything.paths]
            examples = _part(everything, labelled)
            rest = _part(everything, [not has_label for has_label in labelled])
        else:
            known = labels_by_path.keys()
            examples = _embedded_examples(config, encoder, digest, embedded.folder, known)
            rest = _outside(config, everything)
        labels = [labels_by_path[path] for path in examples.paths]
        _report_unread(labels_by_path.keys() - {*examples.paths})
        check_enough(config.labels, dict(zip(examples.paths, labels, strict=True)))  # the readable
        classifier = fit_few_labels(examples.vectors, labels, config.seed)
        estimate = estimate_accuracy(examples.vectors, labels, config.seed)
        _write(config, embedded.folder, classifier, estimate, rest)


def predictions_csv(paths: tuple[str, ...], probabilities: Tensor, classes: tuple[str, ...]) -> str:
    """A line for each image: its path, the likeliest class and that class's probability."""
    best = probabilities.max(1)
    lines = zip(paths, best.indices.tolist(), best.values.tolist(), strict=True)
    rows = [
        (path, classes[position], f"{probability:.4f}") for path, position, probability in lines
    ]
    return table_text([("path", "label", "probability"), *rows])


def _labels_by_path(config: LabelConfig) -> dict[str, str]:
    """The label of each image that a table names, which may be one that cannot be read."""
    labels_by_path = read_table(config.labels)
    with opened_images(config.images, "images") as (_, found):
        names = {printable(file.name) for file in without_results(found, config, "images")}
    return known_labels(config.labels, labels_by_path, config.images, names)


def _labels_by_folder(config: LabelConfig) -> dict[str, str]:
    """The label of each image in class folders, by its path there."""
    with opened_images(config.labels, "labels") as (_, found):
        return labels_by_folder(config.labels, without_results(found, config, "labels"))


def _embedded_examples(
    config: LabelConfig, encoder: Encoder, digest: str, folder: Path, known: Container[str]
) -> Embeddings:
    """Embeddings of the images in class folders that are `known`: others may have come since."""
    with opened_images(config.labels, "labels") as (archive, found):
        there = without_results(found, config, "labels")
        files = [file for file in there if printable(file.name) in known]
        unfinished = folder / "unfinished-labels"
        examples = embed(
            encoder,
            archive,
            files,
            batch_size=config.batch_size,
            unfinished=unfinished,
            key=key_of(digest, archive, files),
        )
    shutil.rmtree(unfinished, ignore_errors=True)
    return examples


def _outside(config: LabelConfig, everything: Embeddings) -> Embeddings:
    """All but those in the labels' folder, which may be the images' folder or inside it."""
    images, labels = (at_home(path).resolve() for path in (config.images, config.labels))
    if not labels.is_relative_to(images):
        return everything
    inside = tuple(map(printable, labels.relative_to(images).parts))
    places = [tuple(path.split("/")) for path in everything.paths]
    return _part(everything, [place[: len(inside)] != inside for place in places])


def _report_unread(paths: Collection[str]) -> None:
    """Names images whose labels nothing was learned from."""
    if paths:
        count = counted(len(paths), "label")
        print(f"left out {count} of images that cannot be read: {listed(sorted(paths))}")


def _part(embeddings: Embeddings, wanted: list[bool]) -> Embeddings:
    paths = tuple(path for path, take in zip(embeddings.paths, wanted, strict=True) if take)
    return Embeddings(paths, embeddings.vectors[torch.tensor(wanted)])


def _write(
    config: LabelConfig,
    folder: Path,
    classifier: FewLabelClassifier,
    estimate: EstimatedAccuracy,
    rest: Embeddings,
) -> None:
    probabilities = classifier.probabilities(rest.vectors)
    predictions = folder / "predictions.csv"
    text = predictions_csv(rest.paths, probabilities, classifier.classes)
    write_atomically(predictions, text.encode())
    with replacing(folder / "classifier.safetensors") as temporary:
        tensors = {"weight": classifier.probe.weight, "bias": classifier.probe.bias}
        metadata = {"classes": json.dumps(classifier.classes, ensure_ascii=False)}
        save_plain(temporary, tensors, metadata)
    described = {
        "labels": printable(config.labels),
        "images": printable(config.images),
        "encoder": printable(str(config.encoder)),
        "classes": list(classifier.classes),
        "C": classifier.strength,
        "cross_validation": asdict(estimate),
        "predicted": len(rest.paths),
    }
    write_json(folder / "labelling.json", described)
    _print(classifier, estimate, predictions, len(rest.paths))


def _print(
    classifier: FewLabelClassifier, estimate: EstimatedAccuracy, predictions: Path, count: int
) -> None:
    low, high = percent(estimate.low).removesuffix(" %"), percent(estimate.high)
    print(
        f"accuracy: {percent(estimate.accuracy)} (95 % confidence interval {low} to {high}), by "
        f"cross-validation on {estimate.images} labelled images, {len(classifier.classes)} classes"
    )
    worst = min(estimate.by_class.items(), key=lambda item: item[1])
    print(f"lowest of a class: {worst[0]}, {percent(worst[1])}")
    print(f"predictions: {printable(str(predictions))} ({count:,} images)")
    if not count:
        print("no image is without a label, so there was nothing to predict")
