"""What is recorded of a run: the lines of `metrics.jsonl`, and what `summary.json` says of it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from orchestra_flwr.config import Config
from orchestra_flwr.data.batches import batch_sizes, local_epochs
from orchestra_flwr.evaluation import Drift, spread_over_clients
from orchestra_flwr.federation.messages.fields import with_prefix
from orchestra_flwr.federation.server.checkpoint import Position
from orchestra_flwr.federation.server.evaluator import OF_STATISTICS, Evaluator, Scores
from orchestra_flwr.federation.server.round import Round
from orchestra_flwr.federation.server.round_report import RoundReport
from orchestra_flwr.federation.server.run_encoders import BestEncoder, statistics_of
from orchestra_flwr.methods import KnowsChance, Method, ordered_backbones

# What a round's record may hold of the clients and models; the kept round's stand in the summary.
OF_ROUND = ("unsupervised", "drift", "clients_own", "models", "nodes", "consensus", "exchange")


def round_record(round_: Round, report: RoundReport, scores: Scores | None) -> dict[str, Any]:
    """A line of `metrics.jsonl`."""
    loss = with_prefix(report.metrics, "loss/")
    failed = {*report.late, *(failure.client for failure in report.dropped)}
    record: dict[str, Any] = {
        "round": round_.number,
        "seconds": report.seconds,
        "clients": {
            "cohort": len(round_.cohort),
            "ok": len(round_.cohort) - len(failed),
            "dropped": [asdict(failure) for failure in report.dropped],
            "examples": report.examples,
            "mean_seconds": report.metrics.get("seconds", 0.0),
        },
        "loss": {**loss, "total": sum(loss.values())} if loss else {},
        "bytes_up": report.bytes_up,
        "bytes_down": report.bytes_down,
        "server_seconds": report.server_seconds,
    }
    if report.left_out:
        record["clients"]["left_out"] = [asdict(value) for value in report.left_out]
    if report.moved and report.moved[-1]:
        record["moved"] = {kind: asdict(moved) for kind, moved in report.moved[-1].items()}
    if measures := with_prefix(report.metrics, "measure/") | report.server_measures:
        record["measures"] = measures
    if merged := with_prefix(report.metrics, "merge/"):
        record["merge"] = merged
    if report.smallest_groups:
        record["release"] = {
            "smallest_group": report.smallest_group,
            "clients": report.smallest_groups,
            "server_state_kept": report.server_state_kept,
        }
    if report.label_free is not None:
        record["unsupervised"] = {**asdict(report.label_free), "score": report.label_free.score}
    if report.drifts:
        record["drift"] = _mean_drift(report.drifts)
    if report.own_classes:
        record["clients_own"] = {
            name: spread_over_clients([accuracies[name] for accuracies in report.own_classes])
            for name in report.own_classes[0]
        }
    if scores is not None:
        record["scores"] = scores
    return record


def chance_losses(
    config: Config, method: Method, records: Sequence[Mapping[str, Any]]
) -> Mapping[str, float]:
    """By the names of a method's losses, their values where nothing was learned, if it has some."""
    if not (isinstance(method, KnowsChance) and records):
        return {}
    return method.chance_losses(usual_batches(config, records[-1])[0])


def usual_steps(config: Config, records: Sequence[Mapping[str, Any]]) -> int:
    """Steps of training behind the model: those of an average client, of all rounds together."""
    trained = [usual_batches(config, r) for r in records if r["round"] and r["clients"]["ok"]]
    return sum(local_epochs(config.training, sum(sizes)) * len(sizes) for sizes in trained)


def usual_batches(config: Config, record: Mapping[str, Any]) -> list[int]:
    """Sizes of the batches of a client with as many images as the round's clients on average."""
    training, clients = config.training, record["clients"]
    images = clients["examples"] // max(1, clients["ok"])
    # Of many images all batches are alike, and a sum that was spoilt may hold any number.
    counted = min(max(1, images), 100 * training.batch_size)
    return batch_sizes(counted, training.batch_size, drop_last=training.drop_last)


def _mean_drift(drifts: Sequence[Drift]) -> dict[str, float]:
    """The mean over several models, each weighted by its clients."""
    clients = sum(drift.clients for drift in drifts)
    return {
        "mean": sum(drift.clients * drift.mean for drift in drifts) / clients,
        "pairs": sum(drift.clients * drift.pairs for drift in drifts) / clients,
    }


def overhead(report: RoundReport, workers: int) -> float:
    """The fraction of the workers' time in a round in which no client was at work.

    A cohort that is no multiple of the workers leaves some of them without a client at the end.
    """
    return 1 - report.client_seconds / (workers * report.seconds)


def run_summary(
    config: Config,
    method: Method,
    position: Position,
    metrics: list[dict[str, Any]],
    *,
    evaluator: Evaluator,
    best: BestEncoder,
) -> dict[str, Any]:
    """The entries for the encoder that is kept: its scores, those at the start, and its round's.

    Args:
        best: the encoder that is kept, where it is not the last one.
    """
    kept = position.round if best.round is None else best.round
    until = [record for record in metrics if record["round"] <= kept]
    # Either may be missing: a server may get its images, or lose them, when the run is resumed.
    untrained, scores = (record.get("scores") or {} for record in (metrics[0], until[-1]))
    backbones = list(ordered_backbones(method, config.evaluation.backbone))
    summary = {
        **_final_metrics(position, untrained, scores, backbones),
        "batch_norm": statistics_of(until[-1], backbones[0]) or evaluator.batch_norm,
        **best.summary(),
    }
    if evaluator.why_not:
        summary["not_evaluated"] = evaluator.why_not
    if start := metrics[0].get("start_sha256"):
        summary["start_sha256"] = start
    if before := metrics[0].get("unsupervised"):
        summary.setdefault("untrained", {})["unsupervised"] = before
    for key in OF_ROUND:
        if value := until[-1].get(key):  # of an earlier round it would be another encoder's
            summary[key] = value
    return summary


def _final_metrics(
    position: Position, untrained: Scores, scores: Scores, backbones: list[str]
) -> dict[str, Any]:
    """The saved backbone's scores at the top level, the others' and the untrained ones below."""
    # Without any round of training the last scores are the first.
    trained = {
        name: {
            key: value
            for key, value in of_backbone.items()
            if key != "batch_norm" and not key.endswith(OF_STATISTICS)
        }
        for name, of_backbone in scores.items()
    }
    return {
        **_kept_first(trained, backbones),
        **({"untrained": _kept_first(untrained, backbones)} if untrained else {}),
        "backbone": backbones[0],
        "rounds": position.round,
        "seconds": position.seconds,
        **({"virtual_seconds": position.clock["now"]} if position.clock else {}),
        "bytes_up": position.bytes_up,
        "bytes_down": position.bytes_down,
        "k_anonymity": position.smallest_cluster,
    }


def _kept_first(scores: Scores, backbones: list[str]) -> dict[str, Any]:
    kept, *others = backbones
    return {**scores.get(kept, {}), **{name: scores[name] for name in others if name in scores}}
