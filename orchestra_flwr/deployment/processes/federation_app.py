"""The federation of a deployment: the same as the simulation's, on a SuperLink's clients.

It is a process of its own, so that the gate answers clients while averages and scores are
computed. `run_server.py` starts it, sends it its task through a channel, and shows its progress.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestra_flwr.deployment.channel.json_pipe import Channel, ChannelClosedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestra_flwr.deployment.server_config import ServerConfig
    from orchestra_flwr.federation.server.encoder_delivery import EncoderDelivery
    from orchestra_flwr.federation.server.members import ConnectedMembers
    from orchestra_flwr.flower.superlink_grid import SuperLinkGrid
    from orchestra_flwr.reporting import RunFolder


def main() -> None:
    """Runs the federation that the server describes; the argument: the channel's descriptor."""
    with Channel(Connection(int(sys.argv[1]))) as channel:
        task = channel.receive()
        # A tracker, or what fetches weights, may need the proxy.
        os.environ |= task["environment"]
        # Users' packages may lie beside the program that was started, and not be installed.
        sys.path += [folder for folder in task["path"] if folder not in sys.path]
        finished = threading.Event()
        threading.Thread(target=_end_with, args=(channel, finished), daemon=True).start()
        try:
            _serve(channel, task)
        except ChannelClosedError:
            os._exit(1)  # nobody reads a message any more
        except Exception as error:
            back = getattr(error, "resume_round", None)
            channel.send({"event": "failed", "error": _failure(error), "resume_round": back})
            raise
        finally:
            finished.set()


def _end_with(channel: Channel, finished: threading.Event) -> None:
    """Ends this process at once when run_server.py has ended: Flower would try for minutes."""
    with contextlib.suppress(ChannelClosedError):
        channel.receive()  # nothing more is sent: it returns at the end
    if not finished.is_set():
        os._exit(1)


def _serve(channel: Channel, task: dict[str, Any]) -> None:
    # Imported with the channel open, so that a failure is reported.
    from orchestra_flwr.data import load_dataset
    from orchestra_flwr.deployment.channel.progress_events import RelayedProgress
    from orchestra_flwr.deployment.server_config import ServerConfig
    from orchestra_flwr.federation.messages.replies import reply_limit
    from orchestra_flwr.federation.messages.schema import Schemas
    from orchestra_flwr.federation.server.evaluator import Evaluator
    from orchestra_flwr.federation.server.loop import run_federation
    from orchestra_flwr.flower.server_task import server_task
    from orchestra_flwr.flower.superlink_grid import SuperLinkGrid
    from orchestra_flwr.reporting import RunFolder
    from orchestra_flwr.training import build_learner

    server_config = ServerConfig.from_json(str(task["config"]))
    config = server_config.for_clients()
    dataset = load_dataset(server_config.data) if server_config.has_images else None
    schemas = Schemas.of(build_learner(config, config.data.channels), config)
    progress = RelayedProgress(channel, config.federation.rounds)
    folder = RunFolder.resume(Path(task["folder"]))
    evaluator = Evaluator(config, dataset, progress.images_evaluated)
    ca = Path(task["ca"]) if task["ca"] else None
    with server_task(Path(task["socket"]), ca, int(task["run"]), progress.message) as grid:
        streaming = SuperLinkGrid(
            grid,
            reply_limit=reply_limit(config, schemas),
            sent=lambda node: channel.send({"event": "sent", "node": node}),
        )
        members = _members(
            server_config,
            streaming,
            schemas.fingerprint,
            progress.message,
            note=lambda *values: channel.send({"event": "member", "values": values}),
        )
        summary = run_federation(
            streaming,
            config.model_copy(update={"init": server_config.init}),
            members,
            evaluator=evaluator,
            folder=folder,
            progress=progress,
            delivery=_delivery(
                server_config,
                streaming,
                members,
                folder,
                progress.message,
                note=lambda *values: channel.send({"event": "delivery", "values": values}),
                queued=bool(task["queued"]),
            ),
        )
    channel.send({"event": "finished", "summary": summary})


def _members(
    config: ServerConfig,
    grid: SuperLinkGrid,
    schema: str,
    show: Callable[[str], None],
    *,
    note: Callable[..., None],
) -> ConnectedMembers:
    from flwr.app import ConfigRecord

    from orchestra_flwr import __version__
    from orchestra_flwr.deployment.keys.peers import is_signed
    from orchestra_flwr.federation.server.members import ConnectedMembers

    sent = {"version": __version__, "config": config.for_clients().to_json(), "schema": schema}
    least = config.federation.min_clients
    assert least is not None
    verify = partial(is_signed, Path(config.security)) if config.tls else None
    return ConnectedMembers(grid, ConfigRecord({**sent}), least, show, note=note, verify=verify)


def _delivery(
    config: ServerConfig,
    grid: SuperLinkGrid,
    members: ConnectedMembers,
    folder: RunFolder,
    show: Callable[[str], None],
    *,
    note: Callable[..., None],
    queued: bool,
) -> EncoderDelivery | None:
    from orchestra_flwr.federation.server.encoder_delivery import EncoderDelivery

    share = config.share
    if not share.encoder:
        return None
    return EncoderDelivery(
        grid,
        members,
        folder,
        config,
        show,
        every=share.every,
        wait=share.wait,
        note=note,
        queued=queued,
    )


def _failure(error: Exception) -> str:
    expected = type(error).__name__ in {"FederationError", "ConfigError", "EngineStoppedError"}
    return str(error) if expected else f"{type(error).__name__}: {error}"
