"""Many small clients in one process, for `many_clients.py`.

Each has a thread, a connection with TLS and a key of its own, Flower's own client of the fleet
interface, and this project's `ClientWorker` with a few images, which trains for real. A client on a
machine of its own also has a SuperNode's process, which costs the server nothing.

Flower ends the process of a client that cannot connect, or that its server no longer knows, and a
client of this project starts it again. Here only that client's connection ends, and is made anew.
"""

from __future__ import annotations

import argparse
import random
import signal
import threading
import time
from functools import partialmethod
from pathlib import Path
from typing import Any

import httpx
import torch
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    iterate_object_tree,
)
from flwr.supernode import fleet_http_connection
from flwr.supernode.fleet_http_connection import http_request_response

from orchestra_flwr.config import load
from orchestra_flwr.deployment.client_config import ClientConfig
from orchestra_flwr.deployment.client_work.client_worker import ClientWorker
from orchestra_flwr.deployment.keys.client_keys import client_files, load_private_key
from orchestra_flwr.deployment.processes.supernode import FIRST_WAIT, MAX_WAIT
from orchestra_flwr.federation.messages.failures import Failure, to_error
from orchestra_flwr.flower.client_tasks import Request
from orchestra_flwr.flower.deployed_app import APP

ASKS_AGAIN = 3.0  # seconds after which a SuperNode asks again
STARTS = 0.02  # seconds between two clients that connect


class Link:
    """A client's connection: messages in, replies out, as a SuperNode has it.

    Args:
        connection: what Flower's `http_request_response` gives.
    """

    def __init__(self, connection: tuple[Any, ...]) -> None:
        _, self._receive, self._send, _, _, self._pull, self._push, self._confirm = connection

    def take(self) -> Message | None:
        """The next message; None: there is none now."""
        if (received := self._receive()) is None:
            return None
        head, tree = received
        run = head.metadata.run_id
        contents = {identifier: self._object(run, identifier) for identifier in _identifiers(tree)}
        self._confirm(run, head.metadata.message_id)
        message: Any = inflate_object_from_contents(tree.object_id, contents)
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message

    def _object(self, run: int, identifier: str) -> bytes:
        while True:
            try:
                return self._pull(run, identifier)
            except Exception as error:  # it is still on its way
                if type(error).__name__ != "ObjectUnavailableError":
                    raise
                time.sleep(0.2)

    def reply(self, message: Message, answer: RecordDict | Any) -> None:
        """Sends the answer to a message."""
        reply = Message(answer, reply_to=remove_content_from_message(message))
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            objects = get_all_nested_objects(reply)
            missing, session = self._send(reply, get_object_tree(reply), 0.0)
        for identifier in missing:
            self._push(reply.metadata.run_id, session, identifier, objects[identifier].deflate())


def _identifiers(tree: ObjectTree) -> list[str]:
    return [part.object_id for part in iterate_object_tree(tree)]


def live(name: str, arguments: argparse.Namespace) -> None:
    """One client, until the process ends."""
    bundle = arguments.security / "bundles" / name
    files = client_files(bundle)
    config = load(
        ClientConfig,
        [f"server={arguments.server}", f"security={bundle}", f"data.root={arguments.photos}",
         f"state={arguments.state}", "device=cpu", "training.threads=1"],
    )  # fmt: skip
    folder = arguments.state / name
    folder.mkdir(parents=True, exist_ok=True)
    worker = ClientWorker(config, name, folder, lambda line: None)
    private = load_private_key(files.key, "")
    wait = FIRST_WAIT
    while True:
        try:
            with http_request_response(
                arguments.server, False, files.ca.read_bytes(), (private, private.public_key())
            ) as connection:
                wait = FIRST_WAIT
                take_part(Link(connection), worker)
        except ConnectionError as error:
            print(f"{name}: {error}", flush=True)
        time.sleep(wait * random.uniform(0.5, 1))
        wait = min(2 * wait, MAX_WAIT)


def take_part(link: Link, worker: ClientWorker) -> None:
    """Answers messages until the connection ends."""
    while True:
        message = link.take()
        if message is None:
            time.sleep(ASKS_AGAIN)
            continue
        metadata = message.metadata
        content = message.content
        answer = worker.answer(Request(metadata.message_type, APP, metadata.run_id, content))
        link.reply(message, to_error(answer) if isinstance(answer, Failure) else answer)


def end_connection(code: int, message: str) -> None:
    """Instead of Flower's end of the process.

    Raises:
        ConnectionError: always.
    """
    raise ConnectionError(f"{message} ({code})")


def main() -> None:
    """Starts the clients, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", required=True)
    parser.add_argument("--address", required=True)
    for folder in ("security", "photos", "state"):
        parser.add_argument(f"--{folder}", type=Path, required=True)
    parser.add_argument("--clients", nargs="+", required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    threading.stack_size(512 * 1024)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    fleet_http_connection.flwr_exit = end_connection
    transport: Any = httpx.HTTPTransport
    transport.__init__ = partialmethod(transport.__init__, local_address=arguments.address)
    for name in arguments.clients:
        threading.Thread(target=live, args=(name, arguments), daemon=True).start()
        time.sleep(STARTS)
    threading.Event().wait()


if __name__ == "__main__":
    main()
