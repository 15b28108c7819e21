"""`run_client.py`: one client on its own images, until it is stopped."""

import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from orchestra_flwr.config import ConfigError
from orchestra_flwr.console.reporter import reporter
from orchestra_flwr.console.text import counted
from orchestra_flwr.data import survey
from orchestra_flwr.deployment.client_config import ClientConfig
from orchestra_flwr.deployment.client_work.client_worker import ClientWorker
from orchestra_flwr.deployment.keys.client_keys import (
    NAME_PATTERN,
    ClientFiles,
    client_files,
    default_name,
)
from orchestra_flwr.deployment.keys.peers import NO_SIGNATURES, signatures
from orchestra_flwr.deployment.processes.recurring import warning_daily
from orchestra_flwr.deployment.processes.scratch_folder import check_room_for, scratch_folder
from orchestra_flwr.deployment.processes.supernode import SOCKET, Supernode
from orchestra_flwr.deployment.watch.client_status import ClientStatus
from orchestra_flwr.deployment.watch.watched import watched
from orchestra_flwr.federation.messages.failures import Failure, as_shown, to_error
from orchestra_flwr.files import make_private_folder, private_umask, write_atomically
from orchestra_flwr.flower.client_tasks import ClientTasks, NodeLostError, Request, TaskError
from orchestra_flwr.flower.deployed_app import APP
from orchestra_flwr.folder_lock import FolderInUseError, locked

POLL_SECONDS = 0.1
NAME_FILE = "name"  # in `state`, for a client that was given no name


def run_client(config: ClientConfig) -> None:
    """Serves a federation until it is interrupted.

    Raises:
        ConfigError: images, keys, a state or a temporary folder that cannot be used, or a
            privacy.delta that protects none of so many images.
        OSError: files cannot be written.
        KeyboardInterrupt: a person or a supervisor stopped the client.
    """
    check_room_for(f"{SOCKET}12345678")
    keys = client_files(config.keys_folder) if config.tls else None
    root = str(config.data.root)
    count, labelled, _ = survey(root)
    config.privacy.check_images(min(count, config.data.most or count))
    with ExitStack() as stack:
        stack.enter_context(private_umask())  # what Flower writes there as well
        name = _name(config, keys)
        folder = stack.enter_context(_own_folder(config, name))
        scratch = stack.enter_context(scratch_folder())
        report = reporter(config.logging.format, name)
        kind = "in class folders" if labelled else "without labels"
        if 0 < labelled < count:
            kind = f"{labelled} of them in class folders, the others without labels"
        report(f"{counted(count, 'image')} in {root} ({kind})")
        report(f"state in {folder}, {'TLS' if keys else 'plain text'}")
        stack.enter_context(warning_daily(keys.dated if keys else (), report))
        signed = signatures(keys) if keys else NO_SIGNATURES
        worker = ClientWorker(config, name, folder, report, signed)
        supernode = Supernode(
            str(config.server),
            keys,
            scratch,
            folder,
            way_to_tls=config.way_to_tls,
            problem=lambda: worker.problem,
            report=report,
        )
        status = ClientStatus(
            name,
            str(config.server),
            count,
            connected=lambda: not supernode.trouble and supernode.socket is not None,
            problem=lambda: supernode.trouble or worker.problem,
            certificates=keys.dated if keys else (),
        )
        stack.enter_context(watched(config.watch, status.to_dict, report))
        report(f"starting Flower, which connects to {config.server} ...")
        supernode.start()
        try:
            while True:
                if (socket := supernode.socket) is not None:
                    _serve(socket, worker, report, status)
                time.sleep(POLL_SECONDS)
        finally:
            report("stopping")
            supernode.stop()


def _serve(
    socket: Path, worker: ClientWorker, report: Callable[[str], None], status: ClientStatus
) -> None:
    """Answers the messages of a SuperNode until it ends."""
    tasks = ClientTasks(socket)
    refused: int | None = None  # the foreign run that was reported last
    try:
        while True:
            try:
                with tasks.take() as task:
                    if task is None:
                        time.sleep(POLL_SECONDS)
                    elif (foreign := _foreign(task.request)) is None:
                        status.asked(task.request)
                        answer = worker.answer(task.request)
                        status.answered(task.request.kind, answer)
                        task.reply(to_error(answer) if isinstance(answer, Failure) else answer)
                    else:
                        if task.request.run != refused:
                            refused = task.request.run
                            report(foreign)
                        task.reply(to_error(Failure.OTHER_APP))
            except TaskError as error:
                report(as_shown(str(error)))
    except NodeLostError:
        pass  # `Supernode` reports why
    finally:
        tasks.close()


def _foreign(request: Request) -> str | None:
    """A line about a message that asks for another app's work; None: it asks for ours."""
    if request.app == APP and request.kind in ClientWorker.KINDS:
        return None
    return (
        f"refused a message of another app: {as_shown(request.app)}, {as_shown(request.kind)} "
        f"(run {request.run}); this client runs the code of its own installation alone"
    )


def _name(config: ClientConfig, keys: ClientFiles | None) -> str:
    """The client's name: its key's, the configured one, or one made once and stored."""
    if keys is not None:
        if config.name not in (None, keys.name):
            raise ConfigError(f"name={config.name}: this client's key is named {keys.name}")
        return keys.name
    if config.name is not None:
        return config.name
    file = Path(config.state) / NAME_FILE
    if file.is_dir():  # of a client with this very name, from an earlier version
        file = file.with_name(f".{NAME_FILE}")
    try:
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, f"{default_name(secrets.token_hex(3))}\n".encode())
        name = file.read_text(errors="replace").strip()
    except OSError as error:
        raise ConfigError(f"state={config.state}: {error}") from None
    if not re.fullmatch(NAME_PATTERN, name):
        raise ConfigError(f"{file} holds no name of a client: put it back as it was, or give name=")
    return name


@contextmanager
def _own_folder(config: ClientConfig, name: str) -> Iterator[Path]:
    """This client's folder below `state`, for one process at a time."""
    folder = Path(config.state) / name
    if name == NAME_FILE and not folder.is_dir():
        folder = folder.with_name(f"%{name}")  # a name that no client can have
    with ExitStack() as stack:
        try:
            make_private_folder(folder)
            folder.chmod(0o700)  # an earlier version left it open
            stack.enter_context(locked(folder, "lock"))
        except FolderInUseError as owner:
            key = "state" if config.tls else "name"  # its key names it
            raise ConfigError(
                f"client {name} is already running here ({owner}); "
                f"give another one {key}=... of its own"
            ) from None
        except OSError as error:
            raise ConfigError(f"state={config.state}: {error}") from None
        yield folder
