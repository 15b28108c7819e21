"""The scores of an encoder: what metrics, summary and evaluation files hold."""

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from orchestra_flwr.config import AugmentationConfig, EvaluationConfig, ScoresConfig
from orchestra_flwr.console.image_count import OnProgress, no_progress
from orchestra_flwr.evaluation.features import check_labelled, effective_rank, feature_std
from orchestra_flwr.evaluation.few_labels import FRACTIONS, probe_accuracies
from orchestra_flwr.evaluation.finetune import EPOCHS, finetune
from orchestra_flwr.evaluation.knn import knn_accuracy, voters
from orchestra_flwr.evaluation.linear_probe import PENALTY, fit_linear_probe, standard_error
from orchestra_flwr.evaluation.published_probe import PUBLISHED_PROBES
from orchestra_flwr.evaluation.several_labels import mean_average_precision
from orchestra_flwr.models import device_of, extract_features
from orchestra_flwr.process_memory import return_freed_memory

FIXED = "linear_fixed"  # the protocol whose probes all have the fixed penalty
LABELLED = "linear_labelled"  # the protocol whose labels are those that clients learn from

SINGLE = {"knn", "linear", FIXED, *PUBLISHED_PROBES}  # protocols of one accuracy

# Images (N, C, H, W) uint8 or features (N, dim), and classes (N,) or, if several, (N, K) bool.
PRECISION_ALONE = "images with several labels are evaluated by mean average precision (mAP) alone"
Labelled = tuple[Tensor, Tensor]
# Which training images, (N,) bool, and further ones that are not among them.
Shown = tuple[Tensor, Labelled | None]
Classifier = tuple[nn.Module, Tensor]  # makes logits (B, K) of features; the test images' classes


def evaluate(
    encoder: nn.Module,
    train: Labelled,
    test: Labelled,
    *,
    config: EvaluationConfig,
    augmentation: AugmentationConfig,
    seed: int = 0,
    shown: Shown | None = None,
    classifier: Classifier | None = None,
    on_progress: OnProgress = no_progress,
) -> dict[str, float]:
    """Evaluates an encoder on all test images, none left out.

    Args:
        encoder: maps images (B, C, H, W), uint8 or in [0, 1], to features (B, dim).
        train: images and labels; the kNN's bank and the probe's training set. Labels (N, K) bool
            are those of images that may show several classes.
        config: batch size and precision, the kNN's k and temperature, which linear probe, and
            whether there are probes with few labels.
        augmentation: limits that the images set, for the published probe.
        seed: draws the few labels.
        shown: the images whose labels clients learn from; None: not known.
        classifier: a method's classification head, and the test images' classes as it numbers them.
        on_progress: called while features are made, with the images done and their total.

    Returns:
        `knn` and `linear`, fractions, each with its binomial `..._standard_error`; the probe's
        chosen `linear_penalty`; of the test features `feature_std`, 0 (collapsed) to about 1, and
        `effective_rank`; where asked for, `linear_10`, `linear_1`, `linear_labelled`, `accuracy`.
        For images that may show several classes, `map` replaces all accuracies.

    Raises:
        ValueError: shapes do not fit, or a feature is not finite.
    """
    protocol = "linear" if config.probe == "converged" else f"linear_{config.probe}"
    few = tuple(FRACTIONS) if config.few_labels else ()
    labelled = () if shown is None else (LABELLED,)
    scores = evaluate_by(
        encoder,
        train,
        test,
        protocols=("knn", protocol, *few, *labelled),
        config=config,
        augmentation=augmentation,
        seeds=(seed,),
        shown=shown,
        classifier=classifier,
        on_progress=on_progress,
    )
    if "map" in scores:
        return scores
    chosen = {"knn": scores["knn"], "linear": scores[protocol]}
    chosen["knn_standard_error"] = scores["knn_standard_error"]
    chosen["linear_standard_error"] = scores[f"{protocol}_standard_error"]
    chosen |= {name: scores[name]["mean"] for name in few}
    others = ("linear_penalty", *labelled, "feature_std", "effective_rank", "accuracy")
    return chosen | {name: scores[name] for name in others if name in scores}


def evaluate_by(
    encoder: nn.Module,
    train: Labelled,
    test: Labelled,
    *,
    protocols: Collection[str],
    config: ScoresConfig,
    augmentation: AugmentationConfig,
    seeds: Sequence[int] = (0,),
    shown: Shown | None = None,
    classifier: Classifier | None = None,
    on_progress: OnProgress = no_progress,
) -> dict[str, Any]:
    """Evaluates an encoder by the protocols that are asked for; the features are made once.

    Arguments as in :func:`evaluate`, but:

    Args:
        protocols: of knn, linear, linear_10, linear_1, linear_published, linear_dec_ssl, finetune
            and, with `shown`, linear_labelled; with linear_fixed all probes have penalty 1e-4.
        seeds: each draws other labels, for probes and fine-tunings with a fraction of them.

    Returns:
        `feature_std`, `effective_rank` and, by protocol, accuracies of the test images (for several
        classes `map` alone, as in :func:`evaluate`). `linear_10` and `linear_1` hold `mean`, `std`
        and `runs`, and so does `finetune` for each fraction of labels ("0.01", "0.1"). `linear` has
        its `linear_penalty` beside it; the kNN's and each full probe's accuracy has its binomial
        `..._standard_error`.

    Raises:
        ValueError: shapes do not fit, or a feature is not finite.
    """
    further = [] if shown is None or shown[1] is None else [shown[1]]
    bank, queries, *more = _features(encoder, [train, test, *further], config, on_progress)
    scores: dict[str, Any] = {
        "feature_std": feature_std(queries[0]),
        "effective_rank": effective_rank(queries[0]),
    }
    if bank[1].ndim > 1:
        precision = mean_average_precision(*bank, *queries, _penalty(protocols))
        return scores | {"map": precision.mean, "map_standard_error": precision.standard_error}
    if classifier is not None:
        scores["accuracy"] = _accuracy(queries[0], *classifier)
    if "knn" in protocols:
        k, temperature = voters(config.knn_k, len(bank[1])), config.knn_temperature
        scores["knn"] = knn_accuracy(*bank, *queries, k=k, temperature=temperature)
    scores |= _probe_scores(bank, queries, protocols, seeds, _of_clients(bank, shown, more))
    for protocol in (name for name in PUBLISHED_PROBES if name in protocols):
        scores[protocol] = PUBLISHED_PROBES[protocol](
            encoder, train, test, augmentation=augmentation, batch_size=config.batch_size
        )
    for name in SINGLE & scores.keys():
        scores[f"{name}_standard_error"] = standard_error(scores[name], len(test[1]))
    if "finetune" in protocols:
        tuned = partial(finetune, encoder, train, test, seeds=seeds, augmentation=augmentation)
        scores["finetune"] = {
            str(fraction): tuned(fraction=fraction, batch_size=config.batch_size)
            for fraction in EPOCHS
        }
    return scores


def _features(
    encoder: nn.Module, parts: Sequence[Labelled], config: ScoresConfig, on_progress: OnProgress
) -> list[Labelled]:
    """The features of all images, made once for all protocols on a frozen encoder."""
    total = sum(len(images) for images, _ in parts)
    made: list[Labelled] = []
    first = 0
    for images, labels in parts:
        features = extract_features(
            encoder,
            images,
            config.batch_size,
            precision=config.precision,
            on_progress=lambda done, _, first=first: on_progress(first + done, total),  # type: ignore[misc]
        )
        made.append((features, labels))
        first += len(images)
    return_freed_memory()  # a server needs none of it until its next evaluation
    return made


def _of_clients(
    bank: Labelled, shown: Shown | None, further: Sequence[Labelled]
) -> Labelled | None:
    """The features of all images whose labels clients learn from; None: not known."""
    if shown is None:
        return None
    chosen, _ = shown
    some = bank[0][chosen.to(bank[0].device)], bank[1][chosen.to(bank[1].device)]
    features, labels = zip(some, *further, strict=True)
    return torch.cat(features), torch.cat(labels)


def _penalty(protocols: Collection[str]) -> float | None:
    return PENALTY if FIXED in protocols else None


@torch.inference_mode()
def _accuracy(features: Tensor, head: nn.Module, targets: Tensor) -> float:
    logits = head(features.to(device_of(head)))
    return float((logits.argmax(1) == targets.to(logits.device)).double().mean())


def _probe_scores(
    bank: Labelled,
    queries: Labelled,
    protocols: Collection[str],
    seeds: Sequence[int],
    clients: Labelled | None,
) -> dict[str, Any]:
    """Accuracies of converged linear probes, with all labels and with some."""
    scores: dict[str, Any] = {}
    check_labelled("probe's test set", *queries)
    penalty = _penalty(protocols)
    if "linear" in protocols:
        probe = fit_linear_probe(*bank)
        scores |= {"linear": probe.accuracy(*queries), "linear_penalty": probe.penalty}
    if FIXED in protocols:
        scores[FIXED] = fit_linear_probe(*bank, PENALTY).accuracy(*queries)
    if LABELLED in protocols:
        assert clients is not None
        scores[LABELLED] = fit_linear_probe(*clients, penalty).accuracy(*queries)
    for protocol in (name for name in FRACTIONS if name in protocols):
        scores[protocol] = probe_accuracies(bank, queries, FRACTIONS[protocol], seeds, penalty)
    return scores
