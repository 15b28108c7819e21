from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from orchestra_flwr.federation.inline import InlineGrid


def test_each_node_is_its_own_client_and_nothing_runs_early():
    app, seen = ClientApp(), []

    @app.train()
    def train(message, context):
        seen.append(context.node_config["partition-id"])
        return Message(RecordDict({"c": ConfigRecord({"n": len(seen)})}), reply_to=message)

    grid = InlineGrid(app, 3)
    nodes = list(grid.get_node_ids())
    replies = grid.send_and_receive([Message(RecordDict(), n, "train") for n in reversed(nodes)])
    assert seen == []
    assert [r.content["c"]["n"] for r in replies] == [1, 2, 3]
    assert seen == [2, 1, 0]
