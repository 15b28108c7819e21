"""A server whose own operator sends other apps, and who else can reach it."""

from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from orchestra_flwr.federation.messages.failures import Failure
from orchestra_flwr.flower import deployed_app
from orchestra_flwr.flower.server_task import server_task
from orchestra_flwr.flower.superlink_control import SuperLinkControl

# What the ClientApp of a hostile run does, when it is imported as when it is asked.
EVIL = """
from pathlib import Path
Path({marker!r}).write_text("ran")
from flwr.clientapp import ClientApp
app = ClientApp()

@app.train()
def train(message, context):
    Path({marker!r}).write_text("ran")
    return message
"""


def submit(control, publisher, name, marker):
    """Starts a run of an app of the operator's own, under any name; its number."""
    project = deployed_app.PROJECT.replace(deployed_app.PUBLISHER, publisher)
    project = project.replace(deployed_app.NAME, name)
    project = project.replace("orchestra_flwr.federation.server_app:app", "evilapp.client:app")
    project = project.replace(
        "orchestra_flwr.federation.client.client_app:app", "evilapp.client:app"
    )
    files = {
        "pyproject.toml": project,
        "evilapp/__init__.py": "",
        "evilapp/client.py": EVIL.format(marker=str(marker)),
    }
    return control.start_run({path: text.encode() for path, text in files.items()})


def ask(grid, content):
    """What all clients that are there answer to a message for training."""
    nodes = list(grid.get_node_ids())
    messages = [Message(content, node, "train") for node in nodes]
    return [reply.error for reply in grid.send_and_receive(messages, timeout=120)]


def assert_its_apps_are_refused(folder, link, ca, client):
    """Neither another app runs at a client, nor one that has our app's name."""
    control, marker = SuperLinkControl(link, ca), folder / "marker"
    foreign = submit(control, "evil", "evilapp", marker)
    with server_task(link, ca, foreign, print) as grid:
        (error,) = ask(grid, RecordDict())
    assert (error.code, error.reason) == (Failure.OTHER_APP.code, Failure.OTHER_APP.word)
    client.wait_for(f"refused a message of another app: evil/evilapp, train (run {foreign})")

    named_alike = submit(control, deployed_app.PUBLISHER, deployed_app.NAME, marker)
    content = RecordDict(
        {"arrays": ArrayRecord(), "config": ConfigRecord({"config": "${oc.env:HOME}"})}
    )
    with server_task(link, ca, named_alike, print) as grid:
        (error,) = ask(grid, content)
    assert Failure.of(error.code) is not None and error.reason == Failure.of(error.code).word
    assert not marker.exists()


def assert_closed(port, scratch, server, client):
    """Neither side listens where another user of the machine could connect.

    Flower's own programs would, on 127.0.0.1: to start any run, or take a client's messages.
    """
    ports = {port for root in (server.pid, client.pid) for port in listening_ports(root)}
    assert ports == {port}
    sockets = list(scratch.rglob("orchestra-*/*"))
    assert {path.name for path in sockets if path.is_socket()} >= {"link", "node0"}
    for path in scratch.glob("orchestra-*"):
        assert path.stat().st_mode & 0o077 == 0


def listening_ports(pid):
    """TCP ports on which a process, or one that it started, listens (Linux)."""
    pids, inodes = [pid], set()
    for process_id in pids:
        for file in Path(f"/proc/{process_id}/task").glob("*/children"):
            pids += [int(child) for child in file.read_text().split()]
        for descriptor in Path(f"/proc/{process_id}/fd").iterdir():
            try:
                inodes.add(str(descriptor.readlink()))
            except OSError:
                continue
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return {
        int(row[1].rpartition(":")[2], 16)
        for row in rows
        if row[3] == "0A" and f"socket:[{row[9]}]" in inodes
    }
