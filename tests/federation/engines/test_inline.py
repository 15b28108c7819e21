import time

import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from orchestra_flwr.federation.client.answers import answer
from orchestra_flwr.federation.engines.inline import InlineEngine, InlineGrid
from orchestra_flwr.training import client_threads


def test_nothing_runs_before_its_reply_is_due():
    app, seen = ClientApp(), []

    @app.train()
    def train(message, context):
        seen.append(message.content["c"]["client"])
        return Message(RecordDict({"c": ConfigRecord({"n": len(seen)})}), reply_to=message)

    grid = InlineGrid(app)
    (node,) = grid.get_node_ids()
    asked = [RecordDict({"c": ConfigRecord({"client": name})}) for name in "cba"]
    replies = grid.send_and_receive([Message(content, node, "train") for content in asked])
    assert seen == []
    assert [r.content["c"]["n"] for r in replies] == [1, 2, 3]
    assert seen == ["c", "b", "a"]


def test_threads_answer_in_order_and_take_no_more_than_they_need():
    """Messages hold a model each: only those that are worked on are made."""
    app, made = ClientApp(), []

    @app.train()
    def train(message, context):
        return Message(message.content, reply_to=message)

    def messages():
        for number in range(10):
            made.append(number)
            yield Message(RecordDict({"c": ConfigRecord({"n": number})}), 1, "train")

    with client_threads(2, torch.device("cpu")) as threads:
        grid = InlineGrid(app, threads, 2)
        seen = []
        for reply in grid.send_and_receive(messages()):
            seen.append(reply.content["c"]["n"])
            assert len(made) <= len(seen) + 3
    assert seen == list(range(10))


def test_a_client_without_memory_beside_others_is_tried_alone():
    """As on Ray: who finds memory must not depend on who is at work at the same time."""
    app, at_work, tried = ClientApp(), [], []

    @app.train()
    def train(message, context):
        def train_it(content):
            number = content.pop("c")["n"]
            tried.append(number)
            at_work.append(number)
            time.sleep(0.05)
            others = len(at_work) - 1
            at_work.remove(number)
            if number in (3, 7) and (others or number == 7):
                raise torch.OutOfMemoryError("CUDA out of memory")
            return RecordDict({"c": ConfigRecord({"n": number})})

        return answer(message, train_it)

    messages = [Message(RecordDict({"c": ConfigRecord({"n": n})}), 1, "train") for n in range(8)]
    with client_threads(3, torch.device("cpu")) as threads:
        replies = list(InlineGrid(app, threads, 3).send_and_receive(messages))
    assert [r.has_error() or r.content["c"]["n"] for r in replies] == [*range(7), True]
    assert tried.count(7) == 2 and len(tried) in (9, 10)


def test_clients_side_by_side_are_as_many_workers(tiny):
    """What a round's overhead is computed from."""
    for count in (1, 4):
        config = tiny("method=simclr", f"engine.side_by_side={count}")
        engine = InlineEngine(config.engine.settings, config)
        outcome = engine.run(lambda grid, workers: {"workers": workers}, clients=4)
        assert outcome == {"workers": count}
