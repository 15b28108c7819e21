"""The inline engine: clients in this process, one after another or some side by side."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, ClassVar

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from pydantic import Field

from orchestra_flwr.config import Section
from orchestra_flwr.federation.client.answers import ran_out_of_memory
from orchestra_flwr.federation.client.client_app import app as client_app
from orchestra_flwr.federation.client.client_app import forget_images
from orchestra_flwr.federation.engines import Engine, Serve
from orchestra_flwr.flower.process_identity import identify_process
from orchestra_flwr.flower.streaming_grid import OneRunGrid
from orchestra_flwr.training import client_threads, resolve_device, torch_threads


@dataclass
class InlineGrid(OneRunGrid):
    """A grid with one node, which runs a ClientApp right here when its reply is due.

    For debugging (a breakpoint in a client just works), notebooks, quick tests and one GPU.
    """

    NODE: ClassVar[int] = 1

    app: ClientApp  # answers
    threads: ThreadPoolExecutor | None = None  # side by side; None: here, one after another
    count: int = 1  # of the threads

    def __post_init__(self) -> None:
        identify_process()
        self._context = Context(
            run_id=0, node_id=self.NODE, node_config={}, state=RecordDict(), run_config={}
        )

    def get_node_ids(self) -> Iterable[int]:
        """The node; it is always there."""
        return [self.NODE]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Yields one reply per message, in order; nothing runs before the first is requested."""
        if self.threads is None:
            yield from (self.app(message, self._context) for message in messages)
            return
        begun: deque[tuple[Message, dict[str, Any], Future[Message]]] = deque()
        for message in messages:
            content = dict(message.content)  # which a client takes apart
            begun.append((message, content, self._submit(message)))
            if len(begun) == 2 * self.count:  # the oldest may take long: others have work
                yield self._oldest(begun)
        while begun:
            yield self._oldest(begun)

    def _submit(self, message: Message) -> Future[Message]:
        assert self.threads is not None
        return self.threads.submit(self.app, message, self._context)

    def _oldest(self, begun: deque[tuple[Message, dict[str, Any], Future[Message]]]) -> Message:
        """The reply that is due. A client that ran out of memory beside others is tried alone."""
        message, content, future = begun.popleft()
        if not ran_out_of_memory(reply := future.result()):
            return reply
        wait([other for *_, other in begun])
        message.content.update(content)
        return self._submit(message).result()

    push_messages = pull_messages = OneRunGrid._refuse  # replies come at once


class InlineEngine(Engine):
    """The grid above, with the ClientApp of simulations."""

    class Settings(Section):
        side_by_side: int = Field(1, ge=1)

    starts_immediately = True

    settings: Settings

    def check_resources(self) -> None:
        resolve_device(self.config.device)

    def run(self, serve: Serve, clients: int) -> dict[str, Any]:
        """Serves at once: clients run in this process, `side_by_side` of them in threads."""
        forget_images()
        count, device = self.settings.side_by_side, resolve_device(self.config.device)
        if count == 1:
            return serve(InlineGrid(client_app), 1)
        # Each client sets torch's number of threads for the whole process, always to the same.
        with torch_threads(self.config.training.threads), client_threads(count, device) as threads:
            return serve(InlineGrid(client_app, threads, count), count)
