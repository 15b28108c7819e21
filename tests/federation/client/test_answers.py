import importlib
import weakref

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Error, Message, RecordDict

from orchestra_flwr.federation.client import answers
from orchestra_flwr.federation.client import numpy_client as client_module
from orchestra_flwr.federation.client.numpy_client import OrchestraClient
from orchestra_flwr.federation.messages.failures import Failure
from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG, METRICS
from orchestra_flwr.federation.messages.schema import pack_state
from orchestra_flwr.flower.arrays import from_record, to_record
from orchestra_flwr.flower.process_identity import identify_process
from orchestra_flwr.plugins import fingerprint


@pytest.fixture
def client(tiny):
    identify_process()
    images = torch.randint(
        0, 256, (20, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    client = OrchestraClient(tiny(), "0", images)
    client.learner.method.global_centroids.copy_(torch.eye(4, 16))
    return client


def message(client, train=True):
    task = {"round": 1, "train": train, "schema": client.schemas.fingerprint, "contribute": True}
    return RecordDict(
        {ARRAYS: to_record(pack_state(client.learner, client.schemas)), CONFIG: ConfigRecord(task)}
    )


@pytest.mark.parametrize("train", [True, False])
def test_the_answer_is_what_fit_returns(client, train):
    content = message(client, train)
    received = from_record(content[ARRAYS])
    expected, examples, _ = client.fit(
        [received[name] for name in client.receives], {"round": 1, "train": train}
    )
    answer = answers.train_reply(client, content)
    arrays = from_record(answer[ARRAYS])
    assert list(arrays) == (["shared"] if train else []) + ["local_centroids"]
    for array, wanted in zip(arrays.values(), expected, strict=True):
        np.testing.assert_array_equal(array, wanted)
    assert answer[METRICS]["examples"] == examples == 20


def test_nothing_received_is_kept_while_training(client, monkeypatch):
    """On a board these are two more copies of the model."""
    received = []

    def decode(record):
        decoded = from_record(record)
        received.extend(weakref.ref(thing) for thing in (*record.values(), *decoded.values()))
        return decoded

    def train_round(*arguments, **options):
        assert len(received) == 4 and not any(thing() is not None for thing in received)
        return real(*arguments, **options)

    real = client_module.train_round
    monkeypatch.setattr(answers, "from_record", decode)
    monkeypatch.setattr(client_module, "train_round", train_round)
    assert answers.train_reply(client, message(client))[METRICS]["steps"] == 1


def test_in_int8_a_quarter_of_the_model_is_kept_while_training(tiny, client, monkeypatch):
    """An update needs the state before training: it is kept as it came, and decoded after it."""
    small = OrchestraClient(tiny("federation.wire=int8"), "0", client.images)
    received = []

    def decode(record):
        decoded = from_record(record)
        received.extend(weakref.ref(thing) for thing in (*record.values(), *decoded.values()))
        return decoded

    def train_round(*arguments, **options):
        left = [thing() for thing in received if thing() is not None]
        assert all(isinstance(thing, np.ndarray) for thing in left)
        floats = 4 * (small.schemas.shared.size + small.schemas.server.size)
        assert 0 < sum(array.nbytes for array in left) < 0.3 * floats
        return real(*arguments, **options)

    real = client_module.train_round
    content = message(small)
    monkeypatch.setattr(answers, "from_record", decode)
    monkeypatch.setattr(client_module, "train_round", train_round)
    answer = answers.train_reply(small, content)
    assert set(answer[ARRAYS]) == {*small.returns, "local_centroids"}


def test_another_model_is_refused(client):
    content = message(client)
    content[CONFIG]["schema"] = "other"
    with pytest.raises(ValueError, match="both must run the same version"):
        answers.train_reply(client, content)


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), Failure.OUT_OF_MEMORY),
        (MemoryError(), Failure.OUT_OF_MEMORY),
        (RuntimeError("shapes"), Failure.FAILED),
    ],
)
def test_a_client_says_that_its_memory_was_not_enough(client, error, failure):
    def work(content):
        raise error

    reply = answers.answer(Message(message(client), 1, "train"), work)
    assert reply.error.code == failure.code
    assert type(error).__name__ in reply.error.reason
    assert answers.ran_out_of_memory(reply) == (failure is Failure.OUT_OF_MEMORY)


def test_an_error_has_the_place_where_it_can_be_mended(client, user_package):
    """Not the line of torch that raised it, but that of the plug-in which called torch."""
    lines = ["import torch", "", "def work(content):", "    torch.nn.Linear(3, 2)(torch.ones(4))"]
    user_package({"mistaken.py": "\n".join(lines)})
    fingerprint(("my_package",))  # as a configuration does that names the package
    work = importlib.import_module("my_package.mistaken").work
    reply = answers.answer(Message(message(client), 1, "train"), work)
    assert reply.error.reason.startswith("RuntimeError: ")
    assert reply.error.reason.endswith("(mistaken.py:4)")


def test_a_killed_process_counts_as_one_without_memory(client):
    sent = Message(message(client), 1, "train")
    killed = Error(0, "<class 'ray.exceptions.ActorDiedError'>:<'The actor died'>")
    assert answers.ran_out_of_memory(Message(killed, reply_to=sent))
    assert not answers.ran_out_of_memory(Message(Error(0, "late"), reply_to=sent))
    assert not answers.ran_out_of_memory(Message(RecordDict(), reply_to=sent))


def test_scores_are_told_only_in_runs_that_were_agreed_to_ask_for_them(tiny, client):
    """A server that asks all the same gets nothing: no epsilon covers scores."""
    with pytest.raises(ValueError, match="asks its clients for no scores"):
        answers.evaluate_reply(client, message(client))
    agreed = OrchestraClient(tiny("evaluation.unsupervised=true"), "0", client.images)
    assert {"alignment", "uniformity"} <= set(
        answers.evaluate_reply(agreed, message(agreed))[METRICS]
    )
