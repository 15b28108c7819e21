"""`orchestra-top`: how a server or client is doing, on a terminal; the check of an audit log."""

import json
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Any, Self
from urllib.request import ProxyHandler, build_opener

from pydantic import Field, model_validator
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from orchestra_flwr.config import Composed, ConfigError, OptionalPathText
from orchestra_flwr.console.printable import printable
from orchestra_flwr.console.text import counted, duration, size
from orchestra_flwr.deployment.keys.server_address import host_of
from orchestra_flwr.deployment.watch.audit_log import check_audit
from orchestra_flwr.files import at_home

MAX_BYTES = 4_000_000  # of a status
TIMEOUT = 5.0


class TopConfig(Composed):
    """What to look at."""

    file = "top"

    server: OptionalPathText
    once: bool
    seconds: float = Field(gt=0)
    audit: OptionalPathText

    @model_validator(mode="after")
    def _has_one_thing_to_do(self) -> Self:
        if bool(self.server) == bool(self.audit):
            raise ValueError(
                f"server={self.server} audit={self.audit}: one of them must be given, HOST:PORT of "
                "a server or client with watch.port=PORT, or a run folder with an audit log"
            )
        if self.server:
            host_of(self.server)
        return self


def run_top(config: TopConfig) -> None:
    """Shows a status until it is interrupted, or checks an audit log.

    Raises:
        ConfigError: there is no folder `audit`: a mistake in the command, not a changed log.
        OSError, ValueError: no status, or a log that was changed; one line.
    """
    if config.audit:
        folder = at_home(config.audit)
        if not folder.is_dir():
            raise ConfigError(f"audit={config.audit}: no such folder")
        lines, digest = check_audit(folder)
        print(f"{counted(lines, 'line')}, none was changed, removed or moved; the last is {digest}")
        return
    shown, console = snapshot(str(config.server)), Console(highlight=False)
    if config.once:
        console.print(shown)
        return
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # without its terminal nobody can stop it
    with Live(shown, console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            time.sleep(config.seconds)
            try:
                shown = snapshot(str(config.server))
            except (OSError, ValueError) as error:
                # Above, since a low terminal cuts off the end.
                shown.title = Text(f"{error}; what is below is old", style="red")
            live.update(shown, refresh=True)


def snapshot(server: str) -> Table:
    """The status at HOST:PORT, as it is shown.

    Raises:
        OSError: nothing answers there.
        ValueError: something else than a status does.
    """
    table = Table.grid(padding=(0, 2))
    try:
        opener = build_opener(ProxyHandler({}))  # a proxy does not lead to this machine
        with opener.open(f"http://{server}/status", timeout=TIMEOUT) as answer:
            for name, value in _rows(json.loads(answer.read(MAX_BYTES))):
                table.add_row(Text(name, style="dim"), Text(printable(value)))
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise OSError(
            f"server={server}: no status there ({reason}); start it with watch.port=PORT"
        ) from None
    except Exception:  # what a stranger sends, in whatever way it is wrong
        raise ValueError(
            f"server={server}: what answers there shows no status: give watch.host:watch.port"
        ) from None
    return table


def _rows(status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What the page shows, as far as it is there."""
    waits, replies, sent = status.get("waits_for"), status.get("replies"), status["bytes"]
    who = status.get("run") or f"{status['name']}, server {status['server']}"
    yield status["role"], f"{who} ({status['version']})"
    yield "state", status["state"]
    if waits:
        yield "waits for", waits
    if status.get("refused"):
        yield "refused", status["refused"].replace("_", " ")
    if status.get("problem"):
        yield "problem", status["problem"]
    if status["rounds"] or status["state"] != "idle":
        yield "round", f"{status['round']} of {status['rounds']}"
    yield "since then", duration(status["time"] - status["since"])
    if replies and status["method"]:  # else there is no run
        sent_to, failed = sum(replies.values()), replies["failed"]
        yield "replies", f"{sent_to} of {status['cohort']}, {failed} failed"
        yield "time left", status["time_left"] or "not known yet"
    for name, points in status["curves"].items():
        if points:  # a client that has not trained yet has none
            yield name, f"{points[-1][1]:.3f} in round {points[-1][0]}"
    if status["round_seconds"] is not None:
        yield "last round", duration(status["round_seconds"])
    yield "sent", f"{size(sent['up'])} up, {size(sent['down'])} down"
    for name in ("clients", "encoder", "dropped", "answers", "epsilon", "certificates"):
        if values := {key: value for key, value in status.get(name, {}).items() if value}:
            yield name, _listed(name, values)
    if status.get("names"):  # up to 200: last, where a low terminal cuts them off
        named = (
            f"{client['name']} {client['state'].replace('_', ' ')}" for client in status["names"]
        )
        yield "by name", ", ".join(named)


def _listed(name: str, values: Mapping[str, float]) -> str:
    if name == "certificates":  # by the names of their files
        return ", ".join(f"{file} {days:.4g}" for file, days in values.items()) + " (days left)"
    return ", ".join(f"{key.replace('_', ' ')} {value:.4g}" for key, value in values.items())
