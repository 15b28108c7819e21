"""A server's operator who wants more of a client than an update: code to run, images, settings.

    python benchmarks/faults/hostile_server.py SOCKET CA ATTACK

Talks to the SuperLink of a real server as its owner can, asks every client that is there, and
prints the answers as JSON: a list of [code, reason], or of what an answer without error holds.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from orchestra_flwr import __version__
from orchestra_flwr.config import load
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG
from orchestra_flwr.federation.messages.schema import Schemas, pack_state
from orchestra_flwr.flower import deployed_app
from orchestra_flwr.flower.arrays import to_record
from orchestra_flwr.flower.server_task import server_task
from orchestra_flwr.flower.superlink_control import SuperLinkControl
from orchestra_flwr.training import build_learner

EVIL = "evilpkg"  # a package that leaves a marker when it is imported
OURS = (deployed_app.PUBLISHER, deployed_app.NAME)
SIZES = (
    "model.width=8", "model.projector_dim=16", "data.image_size=16", "training.batch_size=16",
    "training.local_epochs=1", "clustering.global_clusters=4", "clustering.local_clusters=2",
)  # fmt: skip
# Publisher and name of the run's app, kind of the message, changes of the server's configuration.
ATTACKS: dict[str, tuple[tuple[str, str], str, dict[str, object]]] = {
    "another app": (("evil", "evilapp"), "train", {}),
    "our app's name with other code": (OURS, "train.evil", {}),
    "a question to another function": (OURS, "query.shell", {}),
    "packages to import": (OURS, "query", {"plugins": [EVIL]}),
    "a round with packages to import": (OURS, "train", {"plugins": [EVIL]}),
    "single images": (OURS, "train", {"clustering": {"name": "features"}}),
    "a value from the environment": (OURS, "train", {"run_dir": "${oc.env:HOME}"}),
    "its folder of images": (OURS, "train", {"data": {"root": "/etc", "name": "image_folder"}}),
    "no configuration": (OURS, "train", {"": None}),
}
# A client trains as usual, on its own images: the value stays a text.
IGNORED = {"a value from the environment", "its folder of images"}
PROGRAM = f"import {EVIL}\nfrom flwr.clientapp import ClientApp\napp = ClientApp()\n"


def write_evil_package(folder: Path) -> Path:
    """A package that writes the marker, which is returned, when somebody imports it."""
    marker = folder / "ran"
    package = folder / EVIL
    package.mkdir(parents=True)
    text = f"from pathlib import Path\nPath({str(marker)!r}).write_text('ran')\n"
    (package / "__init__.py").write_text(text)
    return marker


def submit(control: SuperLinkControl, app: tuple[str, str]) -> int:
    """Starts a run of an app whose code leaves the marker; its number."""
    text = deployed_app.PROJECT
    for ours, theirs in zip(OURS, app, strict=True):
        text = text.replace(ours, theirs)
    text = "\n".join(
        line.partition("=")[0] + '= "evilapp:app"'
        if line.startswith(("serverapp", "clientapp"))
        else line
        for line in text.splitlines()
    )
    return control.start_run(
        {"pyproject.toml": text.encode(), "evilapp/__init__.py": PROGRAM.encode()}
    )


def content_of(changes: dict[str, object]) -> RecordDict:
    """A message of our own format for a round, with other contents."""
    config = load(ServerConfig, [*SIZES]).for_clients()
    learner = build_learner(config, config.data.channels)
    schemas = Schemas.of(learner, config)
    values = json.loads(config.to_json())
    for name, value in changes.items():
        values[name] = values[name] | value if isinstance(value, dict) else value
    about = {
        "version": __version__,
        "config": "" if "" in changes else json.dumps(values),
        "schema": schemas.fingerprint,
        "round": 1,
        "train": True,
        "contribute": True,
    }
    arrays: ArrayRecord = to_record(pack_state(learner, schemas))
    return RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord(about)})


def main(socket: str, ca: str, attack: str) -> None:
    """Asks all clients, and prints what they answer."""
    app, kind, changes = ATTACKS[attack]
    run = submit(SuperLinkControl(Path(socket), Path(ca)), app)
    answers: list[object] = []
    report = partial(print, file=sys.stderr)  # standard output has the answers alone
    with server_task(Path(socket), Path(ca), run, report) as grid:
        messages = [Message(content_of(changes), node, kind) for node in grid.get_node_ids()]
        for reply in grid.send_and_receive(messages, timeout=120):
            if reply.has_error():
                answers.append([reply.error.code, reply.error.reason])
            else:
                records = reply.content.config_records
                answers.append({name: dict(record) for name, record in records.items()})
    print(json.dumps(answers, default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
