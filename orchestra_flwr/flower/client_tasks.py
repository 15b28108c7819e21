"""The messages that a SuperNode has for its client, without Flower's programs for running apps.

Flower itself installs the app that a message's run brings, imports it, and lets it answer: whoever
controls a server runs any code on every client. Here the archive of an app (FAB) is not even
looked at: a message is content, and the code that answers it is that of this process.

Checked against Flower 1.41 and 1.42: `flwr.supernode.runtime.run_clientapp`, whose steps these are,
without the installation, the loading and the texts of errors; and its
`pull_and_inflate_object_from_tree`, which asks again after 1 s, 2 s and so on for what is not there
yet. No process has to start here, so a message is asked for while it still arrives, and such waits
would double a short round. A SuperNode even announces its work before it has stored the message;
asked for it in that moment, it has none, and would wait for the answer to it for ever.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from flwr.app import Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullAppMessagesResponse,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from orchestra_flwr.flower.heartbeats import heartbeats
from orchestra_flwr.flower.socket_client import LONG_TIMEOUT, connected

# The second is never ours: it is taken only to refuse it, or the SuperNode would wait for ever.
KINDS_OF_TASKS = [TaskType.CLIENT_APP, TaskType.AGENT_APP]
RETRY_SECONDS = 0.05  # until an object that was not there is asked for again; doubled each time
STORED_SECONDS = 30.0  # within which the message of a task is stored
VERSION = RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")

_defaults = pull_and_inflate_object_from_tree.__kwdefaults__
assert _defaults is not None
_defaults["initial_backoff"] = RETRY_SECONDS


class NodeLostError(ConnectionError):
    """The SuperNode has ended."""


class TaskError(ConnectionError):
    """A message cannot be read, or the server did not take its answer."""


@dataclass(frozen=True)
class Request:
    """What a server asks of its client."""

    kind: str  # "query", "train" or "evaluate", as Flower names it; a server may say anything
    app: str  # the app of the message's run, as PUBLISHER/NAME; a server may say anything
    run: int  # the number of that run
    content: RecordDict  # the message's records


class _Client(RuntimeHttpClient):
    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:  # noqa: N802
        """As Flower's, once the message is there."""
        deadline = time.monotonic() + STORED_SECONDS
        while True:
            response = super().PullMessages(request)
            if response.messages_list or time.monotonic() > deadline:
                return response
            time.sleep(RETRY_SECONDS)


class ClientTasks:
    """One SuperNode's messages, taken and answered one after the other."""

    def __init__(self, socket: Path) -> None:
        self._client = connected(_Client, socket, None, [VERSION], timeout=LONG_TIMEOUT)

    @contextmanager
    def take(self) -> Iterator["Task | None"]:
        """The next message; None: there is none now.

        Heartbeats go to the SuperNode every few seconds, until the block is left.

        Raises:
            NodeLostError: the SuperNode has ended, or does not speak as Flower's does.
            TaskError: the message cannot be read.
        """
        try:
            acquired = self._client.AcquireTask(
                AcquireTaskRequest(supported_task_types=KINDS_OF_TASKS)
            )
        except (httpx.HTTPError, ValueError) as error:
            raise NodeLostError(f"no messages can be had: {error}") from error
        if not acquired.token:
            yield None
            return
        self._client._interceptors = (VERSION, RuntimeTokenHttpInterceptor(acquired.token))
        try:
            with heartbeats(self._client):
                yield Task(self._client)
        finally:
            self._client._interceptors = (VERSION,)

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()


class Task:
    """A message that is being worked on.

    Attributes:
        request: what is asked. Its content is not held here as well: it is as large as a model.

    Raises:
        NodeLostError: the SuperNode has ended.
        TaskError: the message cannot be read.
    """

    request: Request

    def __init__(self, client: RuntimeHttpClient) -> None:
        self._client = client
        try:
            message, self._context, run, _ = pull_task_input(client)
        except httpx.ConnectError as error:
            raise NodeLostError(f"no message can be had: {error}") from error
        except Exception as error:  # of whatever kind: the message comes from the server
            raise TaskError(f"a message of the server cannot be read: {error}") from error
        content = message.content if message.has_content() else RecordDict()
        self._message = remove_content_from_message(message)
        self.request = Request(message.metadata.message_type, run.fab_id, run.run_id, content)

    def reply(self, answer: RecordDict | Error) -> None:
        """Sends the answer; an error goes as it is, with nothing else.

        Raises:
            TaskError: the server did not take it.
        """
        completed = isinstance(answer, RecordDict)
        status = SubStatus.COMPLETED if completed else SubStatus.FAILED
        try:
            push_message(self._client, Message(answer, reply_to=self._message), self._context)
            push_task_output(self._client, None, status, "")
        except Exception as error:  # of whatever kind, as where a clock is set meanwhile
            raise TaskError(
                "the server does not take the answer: its run no longer waits for it, this "
                f"client's key was revoked, or it took too long here ({type(error).__name__})"
            ) from error
