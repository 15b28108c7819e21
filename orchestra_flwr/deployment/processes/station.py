"""The part of a server that outlives its runs: gate, SuperLink, and the list of clients."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestra_flwr.console.phases import phase
from orchestra_flwr.deployment.gate import Gate
from orchestra_flwr.deployment.keys.server_keys import ServerFiles, server_files
from orchestra_flwr.deployment.processes.admitted_clients import AdmittedClients
from orchestra_flwr.deployment.processes.child import Child
from orchestra_flwr.deployment.processes.recurring import warning_daily
from orchestra_flwr.deployment.processes.scratch_folder import flower_folders, scratch_folder
from orchestra_flwr.deployment.processes.superlink import superlink_command, wait_until_up
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.deployment.watch.federation_status import FederationStatus, IdleStatus
from orchestra_flwr.deployment.watch.watched import watched
from orchestra_flwr.flower.superlink_control import SuperLinkControl
from orchestra_flwr.reporting import RunFolder

LINK = "link"  # the SuperLink's socket, in the temporary folder


@dataclass
class Station:
    """An open server."""

    scratch: Path  # its temporary folder
    keys: ServerFiles | None  # None: plain text
    link: Child  # the SuperLink
    control: SuperLinkControl  # of the SuperLink
    gate: Gate  # its open port
    names: Callable[[], Mapping[bytes, str | None]]  # of registered clients, by their public keys
    idle: IdleStatus  # what is shown where the server can be watched, between runs
    status: FederationStatus
    report: Callable[[str], None]  # takes lines about clients and SuperLink; each run sets its own

    @property
    def connected(self) -> list[str | None]:
        """The name of each client that waits for a message; None: it has none."""
        names = self.names()
        return [names.get(key) for key in self.gate.connected()]

    def shown(self) -> dict[str, Any]:
        """The status that is shown now, of a run or without one."""
        return self.status.to_dict()

    @contextmanager
    def showing(self, status: FederationStatus) -> Iterator[None]:
        """Shows a run's status until the block ends."""
        self.status = status
        try:
            yield
        finally:
            self.status = self.idle


@contextmanager
def opened(config: ServerConfig, folder: Path, report: Callable[[str], None]) -> Iterator[Station]:
    """A server that clients can connect to, until the block ends.

    The SuperLink's log is in `folder`, that of the run or the queue.

    Raises:
        ConfigError: keys that are missing or wrong, or an address that cannot be used.
        FederationError: the SuperLink did not start.
    """
    keys = server_files(config.keys_folder) if config.tls else None
    clients = config.keys_folder if keys else None

    def say(line: str) -> None:
        station.report(line)

    with ExitStack() as stack:
        scratch = stack.enter_context(scratch_folder())
        socket = scratch / LINK
        folders = flower_folders(scratch)
        link = Child(superlink_command(socket, keys), folders, folder / "superlink.log")
        stack.callback(link.stop)
        control = SuperLinkControl(socket, keys.ca if keys else None)
        admitted = AdmittedClients(control, clients, say)
        gate = Gate(config.host, config.port, socket, tls=keys, names=admitted.names, report=say)
        dated = keys.dated if keys else ()
        idle = IdleStatus(
            config,
            RunFolder(folder),
            lambda: admitted.names().values(),
            dated,
            connected=lambda: station.connected,
        )
        station = Station(scratch, keys, link, control, gate, admitted.names, idle, idle, report)
        stack.enter_context(warning_daily(dated, say))
        with phase("starting Flower", report):
            wait_until_up(socket, link)
            stack.enter_context(admitted.watching())
        stack.enter_context(gate)  # once everybody who is registered can be let in
        stack.enter_context(watched(config.watch, station.shown, say))
        yield station
