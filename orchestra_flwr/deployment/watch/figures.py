"""The figures of `/metrics`, in the text format of Prometheus."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from types import SimpleNamespace
from typing import Any

from starlette.responses import Response

from orchestra_flwr.deployment.keys.certificates import Dated
from orchestra_flwr.extras import require

MAX_DETAILS = 300  # of a round: whatever a plug-in records, there are no more series
# What a round's record holds by the names of clients: as many entries as there are clients.
BY_CLIENT = ("release.clients", "releases", "members")
# Counters over the rounds of a run. Without a run there are none: after a 0 what a resumed run had
# counted before would look as if it had just happened.
OF_A_RUN = ("bytes", "seconds", "dropped")
# The key of a number in a status, or of numbers by their names; the name of its figure, without the
# prefix `orchestra_` (a counter ends in `_total`); the label that the names are values of; what it
# means.
FIGURES = (
    ("states", "state", "state", "1 for what is done now"),
    ("connected", "connected", "", "1 while a client is connected to its server"),
    ("well", "well", "", "0 while something keeps a client from taking part"),
    ("round", "round", "", "Number of the round that began last"),
    ("rounds", "rounds", "", "Number of the last round of the run"),
    ("since", "since_seconds", "", "Unix time at which a round began or ended last"),
    ("cohort", "cohort", "", "Clients that were asked in this round"),
    ("replies", "replies", "result", "Replies so far in this round"),
    ("clients", "clients", "state", "Clients by state"),
    ("encoder", "encoder", "clients", "Clients that have the encoder that is sent, or not yet"),
    ("members", "members_total", "event", "How often clients came and went since the start"),
    ("images", "images", "", "Images of a client"),
    ("answers", "answers_total", "answer", "Answers of a client since its start"),
    ("bytes", "bytes_total", "direction", "Bytes of arrays, up from clients and down to them"),
    ("round_finished", "round_finished", "", "Number of the last finished round"),
    ("round_seconds", "round_seconds", "", "Seconds of the last finished round"),
    ("seconds", "rounds_seconds_total", "", "Seconds of all rounds"),
    ("dropped", "dropped_total", "reason", "Replies of all rounds that were not used, by reason"),
    ("loss", "loss", "part", "Mean loss of the last finished round"),
    ("scores", "score", "score", "Scores of the last finished round"),
    ("epsilon", "epsilon", "of", "Differential privacy that was spent"),
    ("certificates", "certificate_days", "file", "Days until a certificate ends"),
    ("last_round", "last_round", "figure", "What else is known of the last finished round"),
)


def exposed(status: Mapping[str, Any]) -> Response:
    """The figures of a status for Prometheus.

    Raises:
        ConfigError: its library is not installed.
    """
    require("/metrics", "watch", "prometheus_client")
    from prometheus_client import generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

    def collect() -> Iterator[Any]:
        for name, label, meaning, values in figures(status):
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(f"orchestra_{name}", meaning, labels=[label] if label else [])
            for of, value in values.items():
                family.add_metric([of] if label else [], value)
            yield family

    content = generate_latest(SimpleNamespace(collect=collect))
    return Response(content, media_type=CONTENT_TYPE_PLAIN_0_0_4)


def figures(status: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Mapping[str, float]]]:
    """Name, label, meaning and numbers of each figure that a status holds.

    The numbers are by the values of the label; without a label there is one number, under "".
    """
    version = f"{status['role']} {status['version']}"
    yield "info", "is", "What is watched, and its version", {version: 1}
    has_run = status.get("method", "") is not None  # a client has no such key
    for key, name, label, meaning in FIGURES:
        value = status.get(key) if has_run or key not in OF_A_RUN else None
        values = value if isinstance(value, Mapping) else {"": value}
        if numbers := details(values):
            yield name, label, meaning, numbers


def details(record: Mapping[str, Any]) -> dict[str, float]:
    """All numbers of nested values by their paths, such as `clients.mean_seconds`.

    New entries of a round's record appear by themselves; those with one number per client are
    left out.
    """
    return dict(islice(_numbers(record, ""), MAX_DETAILS))


def _numbers(values: Mapping[str, Any], above: str) -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        path = f"{above}{key}"
        if isinstance(value, Mapping):
            if not path.endswith(BY_CLIENT):
                yield from _numbers(value, f"{path}.")
        elif isinstance(value, int | float):
            yield path, float(value)


def days_left(certificates: Iterable[Dated]) -> dict[str, float]:
    """Days until each certificate ends, by the names of their files; the earliest of a file."""
    now = datetime.now(UTC)
    days: dict[str, float] = {}
    for dated in certificates:
        left = (dated.certificate.not_valid_after_utc - now).total_seconds() / 86_400
        days[dated.path.name] = min(left, days.get(dated.path.name, left))
    return days
