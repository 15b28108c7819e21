"""The ClientApp of a deployment: hands every message to the client's own process and waits.

Flower starts a process for each message. This one imports neither torch nor anything that does,
so that it is there in the time that Flower itself takes.
"""

from __future__ import annotations

import traceback

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from orchestra_flwr.deployment.channel.flower_records import decode, encode
from orchestra_flwr.deployment.channel.unix_socket import Channel
from orchestra_flwr.federation.messages.failures import Failure, to_error

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """The greeting of a run."""
    return _relay("greet", message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """A round of training."""
    return _relay("train", message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Scores of the averaged encoder."""
    return _relay("evaluate", message, context)


def _relay(kind: str, message: Message, context: Context) -> Message:
    # Flower would send the text of an exception, with the paths in it, to the server.
    try:
        header, blobs = encode(message.content)
        with Channel.connect(str(context.node_config["channel"])) as channel:
            channel.send({"kind": kind, "content": header}, blobs)
            answer, blobs = channel.receive()
        if "failure" in answer:
            return Message(to_error(Failure.named(answer["failure"])), reply_to=message)
        return Message(decode(answer["content"], blobs), reply_to=message)
    except Exception:
        traceback.print_exc()  # into the SuperNode's log, on this machine
        return Message(to_error(Failure.FAILED), reply_to=message)
