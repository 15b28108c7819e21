"""Whether a round's result may be kept, and what to say where it may not."""

from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.server.round import Federation, Round
from orchestra_flwr.federation.server.round_report import RoundReport


def check_round(
    federation: Federation, round_: Round, report: RoundReport, earlier: int | None = None
) -> None:
    """Says, when all stages are over, whether the round's result may be kept.

    Args:
        earlier: the round before the last one to which the run can go back; None: to none.

    Raises:
        FederationError: fewer good replies than `federation.min_success` asks for, or no
            contribution at all to the first server state, without which nothing can be trained.
            If clients tried to train, and none could, it names the earlier round.
    """
    asked, answered = report.asked, report.answered
    needed = federation.config.federation.needed(asked)
    if asked and answered < needed:
        first = [f"client {each.client}: {each.reason}" for each in report.dropped[:1]]
        keys = "(federation.round_timeout, federation.deadline)"
        late = [f"{len(report.late)} were late {keys}"] * bool(report.late)
        why = (
            f"round {round_.number}: {answered} of {asked} clients answered well, "
            f"federation.min_success={federation.config.federation.min_success:g}, a share, "
            f"asks for {needed}; {', '.join([*first, *late])}"
        )
        tried = not all(each.silent for each in report.dropped)
        if answered or not round_.trains or not tried or earlier is None:
            raise FederationError(why)
        why = f"{why}. Nobody could train the model of round {round_.number - 1}"
        raise FederationError(why, resume_round=earlier)
    release = federation.release
    due = release is not None and round_.number >= release.first_round
    report.server_state_kept = due and not report.contributed
    if report.server_state_kept and not round_.trains:
        raise FederationError(missing_release_message(federation, round_, report))


def missing_release_message(federation: Federation, round_: Round, report: RoundReport) -> str:
    """Says of a round that no client's release was used, and what can be done."""
    release, privacy = federation.release, federation.config.privacy
    assert release is not None
    if report.below_minimum:
        return (
            f"round {round_.number}: {report.answered} clients answered well, too few to use their "
            f"{release.label} (exchange.min_members={federation.exchange.min_results()})"
        )
    more = (
        "or have clients with more "
        f"(federation.min_images={federation.config.federation.min_images})"
    )
    why = f"all have fewer than privacy.k_min={privacy.k_min} images: lower it"
    if release.epsilon is not None:
        why = f"the noise of privacy.epsilon={release.epsilon:g} left none: raise it"
    return f"round {round_.number}: no client sent {release.label}, {why}, {more}"
