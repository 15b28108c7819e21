"""The scores of an encoder, as they stand in metrics, summary and evaluation files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor, nn

from orchestra_flwr.config import AugmentationConfig, EvaluationConfig, ScoresConfig
from orchestra_flwr.evaluation.features import extract_features, feature_std
from orchestra_flwr.evaluation.few_labels import FRACTIONS, probe_accuracies
from orchestra_flwr.evaluation.finetune import EPOCHS, finetune
from orchestra_flwr.evaluation.knn import knn_accuracy, voters
from orchestra_flwr.evaluation.linear_probe import linear_accuracy
from orchestra_flwr.evaluation.published_probe import PUBLISHED_PROBES

Labelled = tuple[Tensor, Tensor]  # images (N, C, H, W) uint8 or features (N, dim), classes (N,)


def evaluate(
    encoder: nn.Module,
    train: Labelled,
    test: Labelled,
    *,
    config: EvaluationConfig,
    augmentation: AugmentationConfig,
    seed: int = 0,
) -> dict[str, float]:
    """Evaluates an encoder on all test images, none left out.

    Args:
        encoder: maps images (B, C, H, W), uint8 or in [0, 1], to features (B, dim).
        train: images and labels; the kNN's bank and the probe's training set.
        test: images and labels.
        config: batch size, the kNN's k and temperature, which linear probe, and whether there are
            probes with few labels.
        augmentation: limits that the images set, for the published probe.
        seed: draws the few labels.

    Returns:
        `knn` and `linear`, fractions, and `feature_std`, the spread of the normalised test
        features, from 0 (collapsed) to about 1; if asked for `linear_10` and `linear_1`, of probes
        with 10 % and 1 % of the labels.

    Raises:
        ValueError: shapes do not fit, or a feature is not finite.
    """
    protocol = "linear" if config.probe == "converged" else f"linear_{config.probe}"
    few = tuple(FRACTIONS) if config.few_labels else ()
    scores = evaluate_by(
        encoder,
        train,
        test,
        protocols=("knn", protocol, *few),
        config=config,
        augmentation=augmentation,
        seeds=(seed,),
    )
    linear = {"linear": scores[protocol], **{name: scores[name]["mean"] for name in few}}
    return {"knn": scores["knn"], **linear, "feature_std": scores["feature_std"]}


def evaluate_by(
    encoder: nn.Module,
    train: Labelled,
    test: Labelled,
    *,
    protocols: Collection[str],
    config: ScoresConfig,
    augmentation: AugmentationConfig,
    seeds: Sequence[int] = (0,),
) -> dict[str, Any]:
    """Evaluates an encoder by the protocols that are asked for; the features are made once.

    Args:
        encoder: as in :func:`evaluate`; so are `train`, `test` and `augmentation`.
        train: images and labels.
        test: images and labels.
        protocols: of knn, linear, linear_10, linear_1, linear_published, linear_dec_ssl and
            finetune.
        config: batch size, the kNN's k (at most a tenth of the training images) and temperature.
        augmentation: limits that the images set.
        seeds: each draws other labels, for probes and fine-tunings with a fraction of them.

    Returns:
        `feature_std` and, by the names of the protocols, accuracies of the test images; under
        `finetune` for each fraction of labels ("0.01", "0.1") `mean`, `std` and `runs`, and the
        same three under `linear_10` and `linear_1`.

    Raises:
        ValueError: shapes do not fit, or a feature is not finite.
    """
    bank = extract_features(encoder, train[0], config.batch_size), train[1]
    queries = extract_features(encoder, test[0], config.batch_size), test[1]
    scores: dict[str, Any] = {"feature_std": feature_std(queries[0])}
    if "knn" in protocols:
        k, temperature = voters(config.knn_k, len(bank[1])), config.knn_temperature
        scores["knn"] = knn_accuracy(*bank, *queries, k=k, temperature=temperature)
    if "linear" in protocols:
        scores["linear"] = linear_accuracy(*bank, *queries)
    for protocol in (name for name in FRACTIONS if name in protocols):
        accuracies = probe_accuracies(bank, queries, FRACTIONS[protocol], seeds)
        scores[protocol] = accuracies.summary()
    for protocol in (name for name in PUBLISHED_PROBES if name in protocols):
        scores[protocol] = PUBLISHED_PROBES[protocol](
            encoder, train, test, augmentation=augmentation, batch_size=config.batch_size
        )
    if "finetune" in protocols:
        scores["finetune"] = {
            str(fraction): finetune(
                encoder,
                train,
                test,
                fraction=fraction,
                seeds=seeds,
                augmentation=augmentation,
                batch_size=config.batch_size,
            ).summary()
            for fraction in EPOCHS
        }
    return scores
