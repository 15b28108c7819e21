"""How a client answers a message of the server, in simulations and deployments."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict

from orchestra_flwr.config import ConfigError
from orchestra_flwr.federation.client.numpy_client import OrchestraClient
from orchestra_flwr.federation.messages.failures import Failure
from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG, FROZEN, METRICS, MODEL, MODELS
from orchestra_flwr.federation.messages.frozen_weights import WeightsMissingError
from orchestra_flwr.federation.messages.schema import names_down
from orchestra_flwr.flower.arrays import from_record, to_record
from orchestra_flwr.plugins import describe


def answer(message: Message, work: Callable[[RecordDict], RecordDict]) -> Message:
    """The reply of a simulated client: what `work` makes of the content.

    An exception becomes an error with its text, which a client of a deployment never sends.
    """
    try:
        return Message(work(message.content), reply_to=message)
    except Exception as error:
        failure = Failure.FAILED
        if isinstance(error, torch.OutOfMemoryError | MemoryError):
            failure = Failure.OUT_OF_MEMORY
        elif isinstance(error, WeightsMissingError):
            failure = Failure.WEIGHTS_MISSING
        text = str(error) if isinstance(error, ConfigError) else describe(error)
        return Message(Error(failure.code, text), reply_to=message)


def ran_out_of_memory(reply: Message) -> bool:
    """Whether a client reports that memory ran out, or its process was killed."""
    if not reply.has_error():
        return False
    killed = "ray.exceptions." in (reply.error.reason or "")  # mostly for lack of memory
    return killed or reply.error.code == Failure.OUT_OF_MEMORY.code


def train_reply(client: OrchestraClient, content: RecordDict) -> RecordDict:
    """One round of one client: the content of a message down to that of its reply.

    Args:
        content: arrays and task, as :class:`OrchestraStrategy` sends them. The arrays, which are as
            large as the model, are removed from it: no copy of them waits until training ends.

    Raises:
        ValueError: the server's model is another one than this client's, or the run's updates are
            only sent in a sum.
        TrainingError: a loss that is not finite.
    """
    if client.config.privacy.secure_aggregation:
        raise ValueError(
            "privacy.secure_aggregation=true: this run's updates are sent masked, and the server "
            "asks for one without a mask"
        )
    task = content.config_records[CONFIG]
    received = received_arrays(client, content)
    models = [str(name) for name in task.get(MODELS) or ["model"]]  # type: ignore[union-attr]
    names = names_down(client.schemas, models)
    arrays, examples, metrics = client.fit([received.pop(name) for name in names], dict(task))
    returned = (client.returns if task["train"] else []) + client.contributes
    about: dict[str, Any] = {"schema": client.schemas.fingerprint}
    trained = str(metrics.pop("model"))
    if len(models) > 1:
        about[MODEL] = trained
    return RecordDict(
        {
            ARRAYS: to_record(dict(zip(returned, arrays, strict=True))),
            METRICS: MetricRecord({**metrics, "examples": examples}),
            CONFIG: ConfigRecord(about),
        }
    )


def evaluate_reply(client: OrchestraClient, content: RecordDict) -> RecordDict:
    """A client's scores of the encoder in a message down: scalars only, no arrays.

    Arguments and errors as in :func:`train_reply`.

    Raises:
        ValueError: the run's configuration, which clients agreed to, asks for no scores.
    """
    if not client.config.evaluation.asks_clients:
        raise ValueError("evaluation.unsupervised=false: this run asks its clients for no scores")
    received = received_arrays(client, content)
    task = dict(content.config_records[CONFIG])
    _, examples, scores = client.evaluate([received.pop(name) for name in client.receives], task)
    return RecordDict(
        {
            METRICS: MetricRecord({**scores, "examples": examples}),
            CONFIG: ConfigRecord({"schema": client.schemas.fingerprint}),
        }
    )


def received_arrays(client: OrchestraClient, content: RecordDict) -> dict[str, np.ndarray]:
    """Takes the arrays out of a message down."""
    schema = str(content.config_records[CONFIG]["schema"])
    if schema != client.schemas.fingerprint:
        packages = ["orchestra_flwr", *client.config.plugins]
        raise ValueError(
            f"the server's model has schema {schema}, this client's {client.schemas.fingerprint}: "
            f"both must run the same version of {' and '.join(packages)}"
        )
    arrays = from_record(content.array_records.pop(ARRAYS))
    client.take_frozen(str(content.config_records[CONFIG].get(FROZEN)), arrays.pop(FROZEN, None))
    return arrays
