"""Flower's ClientApp: unpacks a message, calls :class:`OrchestraClient`, packs the reply.

Lives in an importable module so that a worker process keeps its caches between messages.
"""

from __future__ import annotations

import traceback
from functools import lru_cache

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from orchestra_flwr.config import Config
from orchestra_flwr.federation.client import OrchestraClient
from orchestra_flwr.federation.population import load_population
from orchestra_flwr.federation.wire import ARRAYS, CONFIG, METRICS, from_record, to_record
from orchestra_flwr.training import resolve_device

CLIENT_FAILED = 101
app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Tells the server which partition this node holds: node ids are random and unordered."""
    told = ConfigRecord({"partition-id": int(context.node_config["partition-id"])})
    return Message(RecordDict({CONFIG: told}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round of one client; an exception becomes an error reply that says what happened."""
    try:
        return Message(_train(message.content, context), reply_to=message)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{where.filename.rsplit('/', 1)[-1]}:{where.lineno}"
        reason = f"{type(error).__name__}: {error} ({place})"
        return Message(Error(code=CLIENT_FAILED, reason=reason), reply_to=message)


def _train(content: RecordDict, context: Context) -> RecordDict:
    task = content.config_records[CONFIG]
    client = _client(str(task["config"]), int(context.node_config["partition-id"]))
    told = str(task["schema"])
    if told != client.schemas.fingerprint:
        raise ValueError(
            f"the server's model has schema {told}, this client's {client.schemas.fingerprint}: "
            "both must run the same version of orchestra_flwr"
        )
    received = from_record(content.array_records[ARRAYS])
    arrays, examples, metrics = client.fit(
        [received[name] for name in client.receives],
        {"round": task["round"], "train": task["train"]},
    )
    names = (["shared"] if task["train"] else []) + client.contributes
    return RecordDict(
        {
            ARRAYS: to_record(dict(zip(names, arrays, strict=True))),
            METRICS: MetricRecord({**metrics, "examples": examples}),
            CONFIG: ConfigRecord({"schema": client.schemas.fingerprint}),
        }
    )


def _client(config_json: str, partition_id: int) -> OrchestraClient:
    images, parts = _population(config_json)
    chosen = torch.from_numpy(parts[partition_id]).to(images.device)
    return OrchestraClient(Config.from_json(config_json), partition_id, images[chosen])


@lru_cache(maxsize=1)
def _population(config_json: str) -> tuple[Tensor, list[np.ndarray]]:
    """All training images, put on the device once a process and run, and their split."""
    config = Config.from_json(config_json)
    population = load_population(config)
    images = population.dataset.train.images
    return images.to(resolve_device(config.device)), population.parts
