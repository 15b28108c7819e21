"""The ClientApp of a deployment: hands every message to the client's own process and waits.

Flower starts a process for each message. This one imports neither torch nor anything that does,
so that it is there in the time that Flower itself takes.
"""

from __future__ import annotations

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from orchestra_flwr.deployment.channel.flower_records import decode, encode
from orchestra_flwr.deployment.channel.unix_socket import Channel

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
    header, blobs = encode(message.content)
    with Channel.connect(str(context.node_config["channel"])) as channel:
        channel.send({"kind": kind, "content": header}, blobs)
        answer, blobs = channel.receive()
    if "error" in answer:
        return Message(Error(answer["code"], answer["error"]), reply_to=message)
    return Message(decode(answer["content"], blobs), reply_to=message)
