"""`run_server.py`: a federation of real clients, from an empty port to a trained encoder."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from orchestra_flwr.config import ConfigError
from orchestra_flwr.data import load_dataset
from orchestra_flwr.deployment.addresses import is_loopback
from orchestra_flwr.deployment.channel.progress_events import show
from orchestra_flwr.deployment.channel.unix_socket import Channel, ChannelClosedError, Listener
from orchestra_flwr.deployment.gate import Gate, GateTls, listen
from orchestra_flwr.deployment.keys import ServerFiles, public_key_bytes, registered, server_files
from orchestra_flwr.deployment.processes.child import Child, free_port, is_listening
from orchestra_flwr.deployment.processes.flower_command import Flower, FlowerError
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.federation.report import FederationError
from orchestra_flwr.federation.wire import Schemas
from orchestra_flwr.methods import build_method
from orchestra_flwr.reporting import Progress, RunFolder

START_SECONDS = 60.0  # for the SuperLink to listen, and for the server's app to report
ATTEMPTS = 3
POLL_SECONDS = 1.0
REPLY_SLACK = 1 << 20  # bytes of a reply beside its arrays


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
    clients = Path(config.security) if keys else None
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="orch")))
        address = f"127.0.0.1:{free_port()}"
        link = Child(
            _superlink(address, keys),
            {"FLWR_HOME": str(home / "flwr")},
            folder.path / "superlink.log",
        )
        stack.callback(link.stop)
        flower = Flower(home / "flwr", address, keys.ca if keys else None)
        roster = Roster(flower, clients, progress.message)
        gate = Gate(
            config.host,
            config.port,
            address,
            tls=GateTls(keys.certificate, keys.key, keys.ca) if keys else None,
            reply_limit=reply_limit(config),
            names=roster.names,
            refused=lambda line: progress.message(f"refused: {line}"),
        )
        stack.enter_context(gate)
        _wait_until_up(address, link)
        stack.enter_context(roster.watching())
        progress.message(_invitation(config, gate.port))
        listener = Listener(home)
        stack.callback(listener.close)
        channel = _start(flower, listener, link, progress)
        listener.close()  # an app that comes late finds nobody
        with channel:
            channel.send({"config": config.to_json(), "folder": str(folder.path.resolve())})
            return _follow(channel, link, progress)


def check(config: ServerConfig) -> None:
    """Tells what would keep the run from starting, before anything is written.

    Raises:
        ConfigError: wrong options of the method, keys, address or the server's own images.
    """
    listen(config.host, config.port).close()
    build_method(config, config.data.channels)
    if config.tls:
        server_files(Path(config.security))
    if config.has_images:
        load_dataset(config.data)


class Roster:
    """Keeps the SuperLink's registered clients equal to the folder of public keys.

    Args:
        flower: the command line of the SuperLink.
        folder: the folder of keys; None: plain text, where anybody may connect.
        tell: told, in a line, who was registered or revoked.
    """

    def __init__(self, flower: Flower, folder: Path | None, tell: Callable[[str], None]) -> None:
        self._flower = flower
        self._folder = folder
        self._tell = tell
        self._known: dict[str, tuple[bytes, int]] = {}  # name -> key and node id
        self._seen: object = None

    def names(self) -> Mapping[bytes, str]:
        """The name of every registered key."""
        return {key: name for name, (key, _) in self._known.items()}

    def update(self) -> None:
        """Registers keys that have come and unregisters those that have gone.

        Raises:
            ConfigError: the folder cannot be read.
            FlowerError: Flower's command failed.
        """
        if self._folder is None or (seen := _stamp(self._folder / "clients")) == self._seen:
            return
        self._seen = seen
        files = registered(self._folder)
        keys = {name: public_key_bytes(file) for name, file in files.items()}
        gone = [n for n, (key, _) in self._known.items() if keys.get(n) != key]
        if gone:
            self._flower.unregister([self._known.pop(name)[1] for name in gone])
            self._tell(f"revoked: {', '.join(gone)}")
        new = [name for name in keys if name not in self._known]
        if new:
            nodes = self._flower.register([(name, files[name]) for name in new])
            self._known |= {name: (keys[name], node) for name, node in nodes.items()}
            self._tell(f"registered: {', '.join(nodes) or 'none'}")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Updates now, and whenever the folder changes, until the block ends."""
        self.update()
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(POLL_SECONDS):
                try:
                    self.update()
                except (ConfigError, FlowerError) as error:
                    self._tell(f"the list of clients is as it was: {error}")

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _stamp(folder: Path) -> list[tuple[str, int]]:
    """Changes whenever a file of the folder does."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted((entry.name, entry.stat().st_mtime_ns) for entry in entries)


def reply_limit(config: ServerConfig) -> int:
    """Bytes that an honest reply cannot exceed: all arrays in float32, and what surrounds them."""
    method = build_method(config, config.data.channels)
    rows = sum(most * width for most, width in method.contribution_limits().values())
    return 4 * (Schemas.of(method).shared.size + rows) * 2 + REPLY_SLACK


def _superlink(address: str, keys: ServerFiles | None) -> list[str]:
    host, _, port = address.rpartition(":")
    command = ["flower-superlink", "--host", host, "--port", port]
    command += ["--disable-runtime-dependency-installation"]
    if keys is None:
        return [*command, "--insecure"]
    return [
        *command,
        "--enable-supernode-auth",
        "--ssl-ca-certfile",
        str(keys.ca),
        "--ssl-certfile",
        str(keys.certificate),
        "--ssl-keyfile",
        str(keys.key),
    ]


def _wait_until_up(address: str, link: Child) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not is_listening(address):
        if link.returncode is not None or time.monotonic() > deadline:
            last = next((line for line in reversed(link.tail()) if line.strip()), "no output")
            raise FederationError(f"Flower's SuperLink did not start: {last} (see {link.log})")
        time.sleep(0.1)


def _invitation(config: ServerConfig, port: int) -> str:
    """How clients connect."""
    everywhere = config.host in {"0.0.0.0", "::"}
    shown = "<this machine's address>" if everywhere else config.host
    command = f"run_client.py server={shown}:{port} data.root=<images>"
    if not config.tls and not is_loopback(config.host):
        command += " insecure=true"
    how = "TLS" if config.tls else "plain text"
    return f"listening on {config.host}:{port} ({how}); clients: {command}"


def _start(flower: Flower, listener: Listener, link: Child, progress: Progress) -> Channel:
    """Submits the run until its app reports.

    Flower gives up an app that takes more than half a minute to start, as a busy machine may.
    """
    for attempt in range(ATTEMPTS):
        if attempt:
            progress.message("the server's app did not start in time: starting it again")
        try:
            flower.start_run(listener.address)
        except FlowerError as error:
            raise FederationError(str(error)) from None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if (channel := listener.accept(POLL_SECONDS)) is not None:
                return channel
            _demand_alive(link)
    raise FederationError(f"the server's app did not start (see {link.log})")


def _follow(channel: Channel, link: Child, progress: Progress) -> dict[str, Any]:
    """Shows what the server's app tells, until it has finished."""
    try:
        while True:
            event = _next(channel, link)
            if event["event"] == "finished":
                summary: dict[str, Any] = event["summary"]
                return summary
            if event["event"] == "failed":
                raise FederationError(event["error"])
            show(event, progress)
    except ChannelClosedError:
        _demand_alive(link)
        raise FederationError(f"the server's app was ended (see {link.log})") from None


def _next(channel: Channel, link: Child) -> dict[str, Any]:
    while not channel.ready(POLL_SECONDS):
        _demand_alive(link)
    return channel.receive()[0]


def _demand_alive(link: Child) -> None:
    if link.returncode is not None:
        raise FederationError(f"Flower's SuperLink ended (see {link.log})")
