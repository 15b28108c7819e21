"""The inline engine: clients in this process, one after another or some side by side."""

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import islice
from typing import Any, NoReturn

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from pydantic import Field

from orchestra_flwr.config import Config, Section
from orchestra_flwr.federation.client.client_app import app as client_app
from orchestra_flwr.federation.engines.base import Engine, Serve
from orchestra_flwr.flower.process_identity import identify_process
from orchestra_flwr.methods import SupportsVmap
from orchestra_flwr.training import resolve_device, side_by_side, torch_threads, usable_cpus


class InlineGrid(Grid):
    """A grid with one node, which runs a ClientApp right here when its reply is due.

    For debugging (a breakpoint in a client just works), notebooks, quick tests and one GPU.

    Args:
        app: what answers.
        together: messages that are answered side by side.
    """

    NODE = 1

    def __init__(self, app: ClientApp, together: int = 1) -> None:
        identify_process()
        self._app = app
        self._together = together
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
        waiting = iter(messages)
        while some := list(islice(waiting, self._together)):
            yield from side_by_side([partial(self._app, each, self._context) for each in some])

    def set_run(self, run: object) -> None:
        """There is just one run."""

    @property
    def run(self) -> NoReturn:
        """Not kept by this grid."""
        raise NotImplementedError("the inline engine keeps no run")

    def create_message(self, *args: object, **kwargs: object) -> NoReturn:
        """Deprecated in Flower: use the Message constructor."""
        raise NotImplementedError("use flwr.app.Message")

    def push_messages(self, messages: Iterable[Message]) -> NoReturn:
        """Not needed where replies are at once."""
        raise NotImplementedError("the inline engine answers in send_and_receive only")

    def pull_messages(self, message_ids: Iterable[str]) -> NoReturn:
        """Not needed where replies are at once."""
        raise NotImplementedError("the inline engine answers in send_and_receive only")


class InlineSettings(Section):
    """Options under `engine.` for engine=inline."""

    side_by_side: int = Field(1, ge=1)


class InlineEngine(Engine):
    """The grid above, with the ClientApp of simulations."""

    Settings = InlineSettings
    starts_immediately = True

    settings: InlineSettings

    @classmethod
    def check(cls, config: Config) -> None:
        """As :meth:`Plugin.check`: steps that cannot be taken as one, or are replayed as graphs."""
        count = config.engine.settings.side_by_side
        if count == 1:
            return
        chosen = {f"method={config.method.name}": config.method.plugin}
        chosen |= {f"terms.{term.name}": term.plugin for term in config.active_terms}
        for written, plugin in chosen.items():
            if not issubclass(plugin, SupportsVmap):
                raise ValueError(
                    f"engine.side_by_side={count}: must be 1 with {written}, of which steps of "
                    "several clients cannot be taken as one"
                )
        if config.training.cuda_graphs:
            raise ValueError(f"engine.side_by_side={count}: must be 1 with training.cuda_graphs")

    def check_resources(self) -> None:
        """As :meth:`Engine.check_resources`."""
        resolve_device(self.config.device)

    def run(self, serve: Serve, clients: int) -> dict[str, Any]:
        """As :meth:`Engine.run`."""
        count = self.settings.side_by_side
        together = torch_threads(min(count * self.config.training.threads, usable_cpus()))
        with together if count > 1 else nullcontext():
            return serve(InlineGrid(client_app, count), count)
