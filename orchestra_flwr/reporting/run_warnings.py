"""Warnings about a run that went wrong without an error: one line for each fault."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from orchestra_flwr.console.text import ACCURACIES, counted, lookup, percent

SPREADS = {"feature_std": "feature_std", "effective_rank": "effective rank"}
COLLAPSED = 0.5  # of what it was before training
AT_CHANCE = 0.999  # of a loss without any learning: what is above this is no learning either
MIN_ROUNDS = 3  # after which a loss should have left chance
# Rounds, and the share of a run's, after which a loss at chance is named while the run goes on.
# Earlier, many losses that leave chance later would be named.
EARLY_ROUNDS, EARLY = 5, 1 / 3
# Steps of training, before which 5 % or more of BatchNorm's averages (of momentum .1) is still what
# they began with. That can cost an encoder more than it has learned.
FEW_STEPS = 30
NAMED = 3  # clients without a result that have a line of their own


def run_warnings(
    summary: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
    chance: Mapping[str, float],
    steps: int,
    counted_clients: Collection[str],
) -> list[str]:
    """Lines about an encoder that is worse than before or has collapsed, losses, and clients.

    Args:
        summary: the run's scores, and under `untrained` those before training.
        records: the lines of `metrics.jsonl`.
        chance: by the name of a loss, its value for a network that has learned nothing.
        steps: of training behind the encoder, one client's of all rounds.
        counted_clients: those whose work has counted in any round.
    """
    remedy = ""
    if summary.get("batch_norm") == "averaged" and steps < FEW_STEPS:
        remedy = (
            f"after {counted(steps, 'step')} BatchNorm's averages are still partly those of the "
            "start; try more federation.rounds or training.local_epochs"
        )
    harm = [line for line in (_worse(summary, remedy), _collapsed(summary, remedy)) if line]
    # One cause is said once.
    return [
        *(harm[:1] if remedy else harm),
        *losses_at_chance(records, chance),
        *_without_result(records, counted_clients),
    ]


def early_round(rounds: int) -> int | None:
    """The round after which losses at chance are named during a run of so many; None: no round."""
    early = max(EARLY_ROUNDS, int(EARLY * rounds))
    return early if early < rounds else None


def _worse(summary: Mapping[str, Any], remedy: str) -> str:
    """Accuracies that fell by more than their standard error; `remedy` replaces the usual one."""
    worse = []
    for key, title in ACCURACIES.items():
        before, after = lookup(summary, "untrained", key), lookup(summary, key)
        error = lookup(summary, f"{key}_standard_error") or 0.0
        if before is not None and after is not None and after < before - error:
            worse.append(f"{title} {percent(before)} to {percent(after)}")
    if not worse:
        return ""
    usual = "try a smaller training.lr or fewer federation.rounds"
    if summary.get("batch_norm") not in ("frozen", "none"):
        usual += ", and for a pretrained network model.batch_norm=frozen"
    return f"the encoder is worse than before training ({', '.join(worse)}): {remedy or usual}"


def _collapsed(summary: Mapping[str, Any], remedy: str) -> str:
    fallen = []
    for key, title in SPREADS.items():
        before, after = lookup(summary, "untrained", key), lookup(summary, key)
        if before is not None and after is not None and after < COLLAPSED * before:
            fallen.append(f"{title} {before:.3g} to {after:.3g}")
    if not fallen:
        return ""
    usual = "try a smaller training.lr, a larger training.batch_size or another method"
    return f"the features collapse ({', '.join(fallen)}): {remedy or usual}"


def losses_at_chance(
    records: Sequence[Mapping[str, Any]], chance: Mapping[str, float]
) -> list[str]:
    """Losses that were never below chance in the second half of the rounds."""
    lines = []
    for name, level in chance.items():
        losses = [loss for r in records if (loss := lookup(r, "loss", name)) is not None]
        lowest = min(losses[len(losses) // 2 :], default=0.0)
        if len(losses) >= MIN_ROUNDS and lowest >= AT_CHANCE * level:
            knob = "a smaller" if lowest > 1.05 * level else "another"
            lines.append(
                f"the {name} loss stays at chance ({lowest:.3f}, and {level:.3f} without any "
                f"learning): try {knob} training.lr, more training.local_epochs or another method"
            )
    return lines


def _without_result(
    records: Sequence[Mapping[str, Any]], counted_clients: Collection[str]
) -> list[str]:
    """Clients that failed whenever they were asked, with the last reason; of many the first."""
    rounds = [record for record in records if record["round"] > 0]
    failed: dict[str, list[str]] = {}
    for record in rounds:
        # A client with tasks in several stages may fail in each of them.
        reasons = {entry["client"]: entry["reason"] for entry in record["clients"]["dropped"]}
        for client, reason in reasons.items():
            if client not in counted_clients:
                failed.setdefault(client, []).append(reason)
    lines = [
        f"client {client} gave no result, and failed in {len(reasons)} of "
        f"{counted(len(rounds), 'round')}: {reasons[-1]}"
        for client, reasons in failed.items()
    ]
    if more := lines[NAMED:]:
        return [*lines[:NAMED], f"{counted(len(more), 'more client')} gave no result either"]
    return lines
