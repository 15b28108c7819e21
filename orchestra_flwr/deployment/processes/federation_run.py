"""The run of a deployment's app: the simulation's own rounds, on a SuperLink's clients."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord

from orchestra_flwr import __version__
from orchestra_flwr.data import load_dataset
from orchestra_flwr.deployment.channel.json_pipe import Channel
from orchestra_flwr.deployment.channel.progress_events import RelayedProgress
from orchestra_flwr.deployment.keys.client_registry import RegisteredNames
from orchestra_flwr.deployment.keys.peers import is_signed
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.federation.messages.replies import reply_limit
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.federation.server.encoder_delivery import EncoderDelivery
from orchestra_flwr.federation.server.evaluator import Evaluator
from orchestra_flwr.federation.server.loop import FederationRun
from orchestra_flwr.federation.server.members import ConnectedMembers
from orchestra_flwr.flower.server_task import server_task
from orchestra_flwr.flower.superlink_grid import SuperLinkGrid
from orchestra_flwr.reporting import RunFolder
from orchestra_flwr.training import build_learner


def serve(channel: Channel, task: dict[str, Any]) -> None:
    """Runs the federation that a task describes, and reports through the channel."""

    def note(event: str) -> Callable[..., None]:
        return lambda *values: channel.send({"event": event, "values": values})

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
        sent = {"version": __version__, "config": config.to_json(), "schema": schemas.fingerprint}
        least = config.federation.min_clients
        assert least is not None
        security = server_config.keys_folder if server_config.tls else None
        members = ConnectedMembers(
            streaming,
            ConfigRecord({**sent}),
            least,
            progress.message,
            note=note("member"),
            verify=partial(is_signed, security) if security else None,
            keys=RegisteredNames(security) if security else lambda: None,
            counts_images=not config.privacy.secure_aggregation,
        )
        delivery = EncoderDelivery(
            streaming,
            members,
            folder,
            server_config,
            progress.message,
            every=server_config.share.every,
            wait=server_config.share.wait,
            note=note("delivery"),
            queued=bool(task["queued"]),
        )
        summary = FederationRun(
            streaming,
            config.model_copy(update={"init": server_config.init, "model": server_config.model}),
            members,
            evaluator=evaluator,
            folder=folder,
            progress=progress,
            delivery=delivery if server_config.share.encoder else None,
        ).run()
    channel.send({"event": "finished", "summary": summary})
