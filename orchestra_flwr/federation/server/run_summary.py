"""What `summary.json` says of a run's encoder and of its rounds."""

from typing import Any

from orchestra_flwr.config import Config
from orchestra_flwr.federation.server.best_encoder import BestEncoder
from orchestra_flwr.federation.server.checkpoint import Position
from orchestra_flwr.federation.server.evaluator import OF_STATISTICS, Evaluator, Scores
from orchestra_flwr.methods import Method, ordered_backbones

# What a round's record may hold of the clients and models; the last round's stand in the summary.
OF_ROUND = ("unsupervised", "drift", "clients_own", "models", "nodes", "consensus", "exchange")


def run_summary(
    config: Config,
    method: Method,
    position: Position,
    metrics: list[dict[str, Any]],
    *,
    evaluator: Evaluator,
    best: BestEncoder,
) -> dict[str, Any]:
    """The entries of the encoder that is kept: scores, the start's beside them, and its round's.

    Args:
        best: the encoder that is kept, where it is not the last one.
    """
    kept = position.round if best.round is None else best.round
    until = [record for record in metrics if record["round"] <= kept]
    scores = [record["scores"] for record in until if record.get("scores")]
    backbones = list(ordered_backbones(method, config.evaluation.backbone))
    summary = {
        **_final_metrics(position, scores, backbones),
        "batch_norm": evaluator.batch_norm,
        **best.summary(until[-1], backbones[0]),
    }
    if evaluator.why_not:
        summary["not_evaluated"] = evaluator.why_not
    if before := metrics[0].get("unsupervised"):
        summary.setdefault("untrained", {})["unsupervised"] = before
    for key in OF_ROUND:
        if found := until[-1].get(key):  # of an earlier round it would be another encoder's
            summary[key] = found
    return summary


def _final_metrics(
    position: Position, scores: list[Scores], backbones: list[str]
) -> dict[str, Any]:
    """The saved backbone's scores on top, the others and the untrained beside."""
    kept, *others = backbones
    metrics: dict[str, Any] = {}
    if scores:
        untrained = scores[0]
        # Without any round of training the last scores are the first.
        trained = {
            name: {
                key: value
                for key, value in found.items()
                if key != "batch_norm" and not key.endswith(OF_STATISTICS)
            }
            for name, found in scores[-1].items()
        }
        metrics = {
            **trained[kept],
            **{name: trained[name] for name in others if name in trained},
            "untrained": {**untrained[kept], **{name: untrained[name] for name in others}},
        }
    return {
        **metrics,
        "backbone": kept,
        "rounds": position.round,
        "seconds": position.seconds,
        **({"virtual_seconds": position.clock["now"]} if position.clock else {}),
        "bytes_up": position.bytes_up,
        "bytes_down": position.bytes_down,
        "k_anonymity": position.smallest_cluster,
    }
