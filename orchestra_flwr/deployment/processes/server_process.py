"""`run_server.py`: a federation of real clients, from an empty port to a trained encoder."""

import os
import sys
from contextlib import ExitStack, suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from orchestra_flwr.commands.usage import as_called
from orchestra_flwr.data import load_dataset
from orchestra_flwr.deployment.addresses import is_loopback
from orchestra_flwr.deployment.channel.json_pipe import Channel, ChannelClosedError
from orchestra_flwr.deployment.channel.progress_events import show
from orchestra_flwr.deployment.gate import Gate, listen
from orchestra_flwr.deployment.keys import ServerFiles, server_files
from orchestra_flwr.deployment.processes.child import NO_PROXY, Child, python_command
from orchestra_flwr.deployment.processes.expiry import warning_daily
from orchestra_flwr.deployment.processes.flower_command import Flower, FlowerError
from orchestra_flwr.deployment.processes.roster import Roster
from orchestra_flwr.deployment.processes.scratch_folder import (
    check_room_for,
    flower_folders,
    scratch_folder,
)
from orchestra_flwr.deployment.processes.superlink import (
    check_alive,
    superlink_command,
    wait_until_up,
)
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.deployment.watch.audit_log import AuditLog
from orchestra_flwr.deployment.watch.federation_status import FederationStatus
from orchestra_flwr.deployment.watch.watched import watched
from orchestra_flwr.deployment.watch.web_server import serving
from orchestra_flwr.federation.messages.replies import reply_limit
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.federation.server.round_report import FederationError
from orchestra_flwr.reporting import Progress, RunFolder, check_trackers
from orchestra_flwr.training import build_learner, starting_learner

APP = "orchestra_flwr.deployment.processes.federation_app:main"
POLL_SECONDS = 1.0
LINK = "link"  # the SuperLink's socket, in the temporary folder


def serve(config: ServerConfig, folder: RunFolder, progress: Progress) -> dict[str, Any]:
    """Runs or resumes a federation with the clients that connect.

    Args:
        config: the server's configuration.
        folder: the run's folder.
        progress: what a person sees.

    Returns:
        The summary, as it stands in `summary.json`.

    Raises:
        ConfigError: keys that are missing or wrong, or an address that cannot be used.
        FederationError: the run could not be completed.
    """
    keys = server_files(Path(config.security)) if config.tls else None
    schemas = Schemas.of(build_learner(config, config.data.channels), config)
    clients = Path(config.security) if keys else None
    with ExitStack() as stack:
        audit = stack.enter_context(AuditLog(folder.path, progress.message).of_run(config, folder))
        scratch = stack.enter_context(scratch_folder())
        socket = scratch / LINK
        link = Child(
            superlink_command(socket, keys),
            flower_folders(scratch),
            folder.path / "superlink.log",
        )
        stack.callback(link.stop)
        flower = Flower(scratch, socket, keys.ca if keys else None)
        report = audit.overhearing(progress.message)
        roster = Roster(flower, clients, report)
        dated = keys.dated if keys else ()
        status = FederationStatus(config, folder, lambda: roster.names().values(), dated)
        stack.enter_context(watched(config.watch, status, progress.message))
        gate = Gate(
            config.host,
            config.port,
            socket,
            tls=keys,
            reply_limit=reply_limit(config, schemas),
            names=roster.names,
            report=report,
        )
        wait_until_up(socket, link)
        stack.enter_context(warning_daily(dated, progress.message))
        stack.enter_context(roster.watching())
        stack.enter_context(gate)  # once everybody who is registered can be let in
        progress.message(_invitation(config, gate.port))
        task = {**_described(config, folder, socket, keys), "run": _start(flower)}
        app, channel = _start_app(scratch, folder, stack)
        with suppress(ChannelClosedError):  # `_follow` says why
            channel.send(task)
        return _follow(channel, link, app, gate, progress=(progress, status), audit=audit)


def check(config: ServerConfig) -> None:
    """Checks what could prevent the run from starting, before anything is written.

    Raises:
        ConfigError: wrong options of the method, keys, address or the server's own images, a
            package that is not installed, or a temporary folder that cannot be used.
    """
    check_room_for(LINK)
    check_trackers(config)
    listen(config.host, config.port).close()
    if config.watch.port is not None:
        with serving(config.watch.host, config.watch.port, {}):
            pass
    starting_learner(config, config.data.channels, begun=config.resume is not None)
    if config.tls:
        server_files(Path(config.security))
    if config.has_images:
        load_dataset(config.data)


def _invitation(config: ServerConfig, port: int) -> str:
    """How clients connect."""
    everywhere = config.host in {"0.0.0.0", "::"}  # noqa: S104 (compared, not listened on)
    host = f"[{config.host}]" if ":" in config.host else config.host
    shown = "<this machine's address>" if everywhere else host
    command = f"run_client.py server={shown}:{port} data.root=<images>"
    if not config.tls and not is_loopback(config.host):
        command += " insecure=true"
    how = "TLS" if config.tls else "plain text"
    command = as_called(command, sys.argv[0])
    return f"listening on {host}:{port} ({how}); clients: {command}"


def _described(
    config: ServerConfig, folder: RunFolder, socket: Path, keys: ServerFiles | None
) -> dict[str, Any]:
    """What the federation's process has to know."""
    return {
        "config": config.to_json(),
        "folder": str(folder.path.resolve()),
        "socket": str(socket),
        "ca": str(keys.ca.resolve()) if keys else "",
        "environment": {name: os.environ.get(name, "") for name in NO_PROXY},
        "path": [str(Path(part).resolve()) for part in sys.path],
    }


def _start(flower: Flower) -> int:
    """Submits the run; its number."""
    try:
        return flower.start_run()
    except FlowerError as error:
        raise FederationError(str(error)) from None


def _start_app(scratch: Path, folder: RunFolder, stack: ExitStack) -> tuple[Child, Channel]:
    """Starts the federation's process, which ends with the stack; also its channel."""
    ours, theirs = Pipe()
    # The folder stays locked until the app has ended as well.
    lock = [] if folder.lock is None else [folder.lock.fileno()]
    app = Child(
        python_command(APP, str(theirs.fileno())),
        flower_folders(scratch),
        folder.path / "app.log",
        inherited=[theirs.fileno(), *lock],
    )
    theirs.close()
    stack.callback(app.stop)
    return app, stack.enter_context(Channel(ours))


def _follow(
    channel: Channel,
    link: Child,
    app: Child,
    gate: Gate,
    *,
    progress: tuple[Progress, FederationStatus],
    audit: AuditLog,
) -> dict[str, Any]:
    """Passes on what the server's app reports, until it has finished."""
    try:
        while True:
            while not channel.ready(POLL_SECONDS):
                check_alive(link)
            event = channel.receive()
            if event["event"] == "finished":
                summary: dict[str, Any] = event["summary"]
                return summary
            if event["event"] == "failed":
                raise FederationError(event["error"], event["resume_round"])
            if event["event"] == "sent":
                gate.wake(event["node"])
            elif event["event"] == "member":
                what, name, detail = event["values"]
                progress[1].member(what, name)
                audit.add(what, client=name, detail=detail)
            else:
                for each in progress:
                    show(event, each)
    except ChannelClosedError:
        check_alive(link)
        raise FederationError(f"the server's app has ended (see {app.log})") from None
