"""The inline engine: clients one after another in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from orchestra_flwr.federation.client.client_app import app as client_app
from orchestra_flwr.federation.engines.base import Engine, Serve
from orchestra_flwr.training import resolve_device


def identify_process() -> None:
    """Lets this process make messages outside of Flower's runtime, as `run_simulation` does."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 0, 0


class InlineGrid(Grid):
    """A grid with one node, which runs a ClientApp right here when its reply is due.

    For debugging (a breakpoint in a client just works), notebooks, quick tests and one GPU.
    """

    NODE = 1

    def __init__(self, app: ClientApp) -> None:
        identify_process()
        self._app = app
        self._context = Context(
            run_id=0, node_id=self.NODE, node_config={}, state=RecordDict(), run_config={}
        )

    def get_node_ids(self) -> Iterable[int]:
        """The node; it is always there."""
        return [self.NODE]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Yields one reply a message, in order; nothing runs before it is asked for."""
        for message in messages:
            yield self._app(message, self._context)

    def set_run(self, run: Run) -> None:
        """There is just one run."""

    @property
    def run(self) -> Run:
        """Not kept by this grid."""
        raise NotImplementedError("the inline engine keeps no run")

    def create_message(self, *args: object, **kwargs: object) -> Message:
        """Deprecated in Flower: use the Message constructor."""
        raise NotImplementedError("use flwr.app.Message")

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Not needed where replies are at once."""
        raise NotImplementedError("the inline engine answers in send_and_receive only")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Not needed where replies are at once."""
        raise NotImplementedError("the inline engine answers in send_and_receive only")


class InlineEngine(Engine):
    """The grid above, with the ClientApp of simulations."""

    def check_resources(self) -> None:
        """As :meth:`Engine.check_resources`."""
        resolve_device(self.config.device)

    def run(self, serve: Serve, clients: int) -> dict[str, Any]:
        """As :meth:`Engine.run`."""
        return serve(InlineGrid(client_app), 1)
