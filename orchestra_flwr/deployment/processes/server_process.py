"""`run_server.py`: a federation of real clients, from an empty port to a trained encoder."""

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from orchestra_flwr.commands.own_process import own_process
from orchestra_flwr.commands.usage import as_called
from orchestra_flwr.data import load_dataset
from orchestra_flwr.deployment.addresses import is_loopback, listen
from orchestra_flwr.deployment.channel.json_pipe import Channel, ChannelClosedError
from orchestra_flwr.deployment.channel.progress_events import show
from orchestra_flwr.deployment.gate import Gate
from orchestra_flwr.deployment.keys.server_keys import server_files
from orchestra_flwr.deployment.processes.child import NO_PROXY, Child
from orchestra_flwr.deployment.processes.scratch_folder import check_room_for, flower_folders
from orchestra_flwr.deployment.processes.station import LINK, Station, opened
from orchestra_flwr.deployment.processes.superlink import check_alive
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.deployment.watch.audit_log import AuditLog
from orchestra_flwr.deployment.watch.federation_status import FederationStatus
from orchestra_flwr.federation.aggregations import try_aggregation
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.messages.replies import reply_limit
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.federation.server.run_encoders import check_kept
from orchestra_flwr.flower.deployed_app import PROJECT
from orchestra_flwr.flower.superlink_control import SuperLinkError
from orchestra_flwr.reporting import Progress, RunFolder, check_trackers
from orchestra_flwr.training import build_learner, check_model

APP = "orchestra_flwr.deployment.processes.federation_app:main"
POLL_SECONDS = 1.0


class RunCancelledError(Exception):
    """The run was cancelled; the text says why."""


class NotStartedError(FederationError):
    """The SuperLink does not take a run, and would take no other."""


def serve(
    config: ServerConfig,
    folder: RunFolder,
    progress: Progress,
    station: Station | None = None,
    cancelled: Callable[[], str] = lambda: "",
) -> dict[str, Any]:
    """Runs or resumes a federation with the clients that connect; returns its summary.

    Args:
        config: the server's configuration.
        folder: the run's folder.
        progress: what a person sees.
        station: an open server; None: one is opened for this run alone.
        cancelled: returns why the run is to end, or ""; called every second.

    Raises:
        ConfigError: keys that are missing or wrong, or an address that cannot be used.
        FederationError: the run could not be completed.
        RunCancelledError: it was cancelled.
    """
    schemas = Schemas.of(build_learner(config, config.data.channels), config)
    queued = station is not None
    with ExitStack() as stack:
        audit = stack.enter_context(AuditLog(folder.path, progress.message).of_run(config, folder))
        report = audit.overhearing(progress.message)
        if station is None:
            station = stack.enter_context(opened(config, folder.path, report))
            progress.message(invitation(config, station.gate.port))
        else:  # it has registered them before this run
            clients = sorted(name for name in station.names().values() if name is not None)
            audit.add("registered", clients=clients)
        stack.callback(setattr, station, "report", station.report)
        station.report = report
        station.gate.limit_replies(reply_limit(config, schemas))
        dated, names = station.keys.dated if station.keys else (), station.names
        status = FederationStatus(config, folder, lambda: names().values(), dated)
        stack.enter_context(station.showing(status))
        run = _start_run(station)
        app, channel = _start_app(station.scratch, folder, stack)
        with suppress(ChannelClosedError):  # `_follow` says why
            channel.send({**_described(config, folder, station), "run": run, "queued": queued})
        try:
            shown = (progress, status)
            summary = _follow(channel, app, station, shown, audit=audit, cancelled=cancelled)
        except Exception:  # of whatever kind: a queue's server goes on with the next run
            app.stop()
            if queued:  # clients then do not train for it any more
                with suppress(SuperLinkError):
                    station.control.stop_run(run)
            raise
        if queued:
            with suppress(SuperLinkError):
                station.control.forget_messages(run)
        return summary


def check_server(config: ServerConfig) -> None:
    """Checks address, keys and temporary folder.

    Raises:
        ConfigError: one of them cannot be used.
    """
    check_room_for(LINK)
    listen(config.host, config.port).close()
    if config.watch.port is not None:
        listen(config.watch.host, config.watch.port, "watch.").close()
    if config.tls:
        server_files(config.keys_folder)


def check_run(config: ServerConfig) -> None:
    """Checks what could prevent a run from starting at a server that is open.

    Raises:
        ConfigError: wrong options of the method or the server's own images, images that cannot give
            the score of `evaluation.keep=best`, more memory than this machine has, or a package
            that is not installed.
    """
    check_model(config, config.data.channels, begun=config.resume is not None)
    try_aggregation(config)
    check_trackers(config)
    check = partial(check_kept, config)
    check(load_dataset(config.data, check) if config.has_images else None)


def invitation(config: ServerConfig, port: int) -> str:
    """How clients connect, in a line."""
    everywhere = config.host in {"0.0.0.0", "::"}  # noqa: S104 (compared, not listened on)
    host = f"[{config.host}]" if ":" in config.host else config.host
    shown = "<this machine's address>" if everywhere else host
    command = f"run_client.py server={shown}:{port} data.root=<images>"
    if not config.tls and not is_loopback(config.host):
        command += " insecure=true"
    how = "TLS" if config.tls else "plain text"
    command = as_called(command, sys.argv[0])
    return f"listening on {host}:{port} ({how}); clients: {command}"


def _start_run(station: Station) -> int:
    try:
        return station.control.start_run({"pyproject.toml": PROJECT.encode()})
    except SuperLinkError as error:
        raise NotStartedError(f"the run could not be started: {error}") from None


def _described(config: ServerConfig, folder: RunFolder, station: Station) -> dict[str, Any]:
    """What the federation's process has to know."""
    return {
        "config": config.to_json(),
        "folder": str(folder.path.resolve()),
        "socket": str(station.scratch / LINK),
        "ca": str(station.keys.ca.resolve()) if station.keys else "",
        "environment": {name: os.environ.get(name, "") for name in NO_PROXY},
        "path": [str(Path(part).resolve()) for part in sys.path],
    }


def _start_app(scratch: Path, folder: RunFolder, stack: ExitStack) -> tuple[Child, Channel]:
    """Starts the federation's process, which ends with the stack; returns its channel as well."""
    ours, theirs = Pipe()
    # The folder stays locked until the app has ended as well.
    lock = [] if folder.lock is None else [folder.lock.fileno()]
    app = Child(
        own_process(APP, str(theirs.fileno())),
        flower_folders(scratch),
        folder.path / "app.log",
        inherited=[theirs.fileno(), *lock],
    )
    theirs.close()
    stack.callback(app.stop)
    return app, stack.enter_context(Channel(ours))


def _follow(
    channel: Channel,
    app: Child,
    station: Station,
    progress: tuple[Progress, FederationStatus],
    *,
    audit: AuditLog,
    cancelled: Callable[[], str],
) -> dict[str, Any]:
    """Passes on what the server's app reports, until it has finished."""
    try:
        looked = -math.inf
        while True:
            ready = channel.ready(POLL_SECONDS)
            if not ready or time.monotonic() - looked >= POLL_SECONDS:
                looked = time.monotonic()  # even if events follow one another for hours
                check_alive(station.link)
                if why := cancelled():
                    raise RunCancelledError(why)
            if not ready:
                continue
            event = channel.receive()
            if event["event"] == "finished":
                summary: dict[str, Any] = event["summary"]
                return summary
            if event["event"] == "failed":
                raise FederationError(event["error"], event["resume_round"])
            _pass_on(event, station.gate, progress, audit)
    except ChannelClosedError:
        check_alive(station.link)
        raise FederationError(f"the server's app has ended (see {app.log})") from None


def _pass_on(
    event: Mapping[str, Any],
    gate: Gate,
    progress: tuple[Progress, FederationStatus],
    audit: AuditLog,
) -> None:
    """Passes on what the server's app reports to all whom it concerns."""
    if event["event"] == "sent":
        gate.wake(event["node"])
    elif event["event"] == "member":
        what, name, detail = event["values"]
        progress[1].member(what, name)
        audit.member(what, name, detail)
    elif event["event"] == "delivery":
        digest, have, missing, over = event["values"]
        progress[1].delivery(len(have), len(missing), over=over)
        if over:
            audit.add("sent", encoder=digest, clients=have, without=missing)
    else:
        for display in progress:
            show(event, display)
