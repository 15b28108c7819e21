"""The figures of `/metrics`, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from orchestra_flwr.deployment.keys.certificates import Dated
from orchestra_flwr.deployment.watch.web_server import Answer

MAX_DETAILS = 300  # of a round: whatever a plug-in records, there are not more series
# In a round's record by the names of clients, and so as many as there are clients.
BY_CLIENT = ("release.clients", "releases", "members")


@dataclass(frozen=True)
class Figure:
    """One number.

    Attributes:
        name: without the prefix `orchestra_`; that of a counter ends in `_total`.
        meaning: one line, the same for all of the name.
        value: the number; None: there is none now.
        labels: what tells it from others of its name.
    """

    name: str
    meaning: str
    value: float | None
    labels: Mapping[str, str] = field(default_factory=dict)


def exposed(figures: Iterable[Figure]) -> Answer:
    """The figures for Prometheus; one line where its library is not installed."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
    except ImportError:
        return Answer.line(
            "prometheus_client is not installed: pip install 'orchestra-flwr[watch]', "
            "then start this again",
            501,
        )
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(figures))
    return Answer(generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4)


class _Collected:
    """What the library asks for figures."""

    def __init__(self, figures: Iterable[Figure]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        for figure in self._figures:
            if figure.value is None:
                continue
            family = families.get(figure.name)
            if family is None:
                kind = CounterMetricFamily if figure.name.endswith("_total") else GaugeMetricFamily
                labels = list(figure.labels)
                family = kind(f"orchestra_{figure.name}", figure.meaning, labels=labels)
                families[figure.name] = family
            family.add_metric(list(figure.labels.values()), figure.value)
        yield from families.values()


def details(record: Mapping[str, Any]) -> dict[str, float]:
    """All numbers of a round's record by their paths, such as `clients.mean_seconds`.

    What is recorded in future appears by itself; what has an entry for each client does not.
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
    for each in certificates:
        left = (each.certificate.not_valid_after_utc - now).total_seconds() / 86_400
        days[each.path.name] = min(left, days.get(each.path.name, left))
    return days


def certificate_figures(certificates: Iterable[Dated]) -> Iterator[Figure]:
    """The same as figures."""
    for file, days in days_left(certificates).items():
        yield Figure("certificate_days", "Days until it ends", days, {"file": file})
