"""Who is asked in a round, and what becomes of clients that do not answer."""

from flwr.app import Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from orchestra_flwr.federation.client.client_app import app as client_app
from orchestra_flwr.federation.messages.fields import CONFIG
from orchestra_flwr.federation.server.members import SimulatedMembers
from orchestra_flwr.reporting import Progress


class Revoking(SimulatedMembers):
    def revoked(self, name):
        return name == "b"


def test_of_a_client_whose_key_was_revoked_meanwhile_this_is_the_reason(federate, toy):
    app = ClientApp()

    @app.train()
    def train(message, context):
        if message.content[CONFIG]["client"] in ("b", "c"):
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, "gone"), reply_to=message)
        return client_app(message, context)

    @app.query()
    def query(message, context):
        return client_app(message, context)

    run = federate(toy("federation.rounds=1", "federation.min_success=0.5"), app=app,
                   members=Revoking)  # fmt: skip
    dropped = run.records[-1]["clients"]["dropped"]
    assert {entry["client"]: entry["reason"] for entry in dropped} == {
        "b": "its key was revoked",
        "c": "it was ended, or nothing was heard of it for a while",
    }


def test_each_client_that_is_sent_a_model_is_reported(federate, toy, monkeypatch):
    asked = []
    monkeypatch.setattr(Progress, "client_asked", lambda self, client: asked.append(client))
    federate(toy("federation.rounds=2", "federation.participation=0.5"))
    assert len(asked) == 4 and {*asked} <= {"a", "b", "c", "d"}
