"""The idle client of stock Flower: importable, so that Ray's workers need not be sent it."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    arrays = ArrayRecord([a.numpy() for a in message.content["arrays"].values()])
    metrics = MetricRecord({"num-examples": 16})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
