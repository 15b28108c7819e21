"""What is recorded of a run's rounds: the lines of `metrics.jsonl`."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from orchestra_flwr.config import Config
from orchestra_flwr.evaluation import Drift, spread_over_clients
from orchestra_flwr.federation.messages.fields import with_prefix
from orchestra_flwr.federation.server.evaluator import Scores
from orchestra_flwr.federation.server.round import Round
from orchestra_flwr.federation.server.round_report import RoundReport
from orchestra_flwr.privacy.updates import composed_epsilon

MAX_NAMED = 5  # clients in a line


def round_record(round_: Round, report: RoundReport, scores: Scores | None) -> dict[str, Any]:
    """A line of `metrics.jsonl`."""
    loss = with_prefix(report.metrics, "loss/")
    failed = {*report.late, *(each.client for each in report.dropped)}
    record: dict[str, Any] = {
        "round": round_.number,
        "seconds": report.seconds,
        "clients": {
            "cohort": len(round_.cohort),
            "ok": len(round_.cohort) - len(failed),
            "dropped": [asdict(each) for each in report.dropped],
            "examples": report.examples,
            "mean_seconds": report.metrics.get("seconds", 0.0),
        },
        "loss": {**loss, "total": sum(loss.values())} if loss else {},
        "bytes_up": report.bytes_up,
        "bytes_down": report.bytes_down,
        "server_seconds": report.server_seconds,
    }
    if report.left_out:
        record["clients"]["left_out"] = [asdict(each) for each in report.left_out]
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
            name: spread_over_clients([each[name] for each in report.own_classes])
            for name in report.own_classes[0]
        }
    if scores is not None:
        record["scores"] = scores
    return record


def named(names: Sequence[str], most: int = MAX_NAMED) -> str:
    """Some names for a line; of very many the first."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _mean_drift(drifts: Sequence[Drift]) -> dict[str, float]:
    """Of several models, each counts as much as it has clients."""
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


def update_privacy(config: Config, drawn: list[list[int]]) -> dict[str, float | str] | str:
    """What differential privacy the encoders of the rounds so far have.

    What it protects is a client with all its images; but a single image where clients also make
    private releases, which protect no more than that and on which later updates depend. Epsilon
    and that of the releases then add up.
    """
    privacy = config.privacy
    if privacy.clip is None or not drawn:
        return "not covered by differential privacy"
    most = max(clients for clients, _, _ in drawn)
    if privacy.noise_multiplier > 0 and privacy.delta >= 1 / most:
        # Only real clients come to be more than the configuration knows.
        return (
            f"not covered by differential privacy: privacy.delta={privacy.delta:g} must be below "
            f"1 / {most}, one by the clients that were there"
        )
    return {
        "epsilon": composed_epsilon(privacy.noise_multiplier, drawn, privacy.delta),
        "delta": privacy.delta,
        "clip": privacy.clip,
        "noise_multiplier": privacy.noise_multiplier,
        "protects": "a whole client" if privacy.epsilon is None else "an image",
    }
