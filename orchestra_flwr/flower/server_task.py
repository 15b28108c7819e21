"""A server's own run at its SuperLink, worked on by this process and not by an app of Flower's.

Checked against Flower 1.41 and 1.42: `flwr.superlink.runtime.run_serverapp`, whose steps these are,
without installing and loading what a run brings.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import httpx
from flwr.common.constant import SubStatus
from flwr.common.serde import run_from_proto
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.retry import RetryInvoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.grid.http_grid import HttpGrid

from orchestra_flwr.flower.heartbeats import heartbeats
from orchestra_flwr.flower.patience import explained, patient_retries
from orchestra_flwr.flower.process_identity import identify_process
from orchestra_flwr.flower.socket_client import HOST, LONG_TIMEOUT, connected

WAIT_SECONDS = 60.0
POLL_SECONDS = 0.1
VERSION = RuntimeVersionHttpInterceptor(component_name="flwr-serverapp")


@contextmanager
def server_task(
    socket: Path, ca: Path | None, run: int, report: Callable[[str], None]
) -> Iterator[HttpGrid]:
    """The connection of a run's server to its clients; the run is over when the block is left.

    A SuperLink that does not answer in time is asked again for minutes.

    Args:
        ca: the certificate that signed the SuperLink's; None: plain text.
        report: takes a line about a SuperLink that does not answer; called from any thread.

    Raises:
        TimeoutError: the SuperLink has no such run.
        EngineStoppedError: it has ended the run, or did not answer for minutes.
    """
    retries = patient_retries(report)
    with explained():
        token = _acquire(socket, ca, run, retries)
        grid = HttpGrid(HOST, insecure=ca is None, token=token)
        grid._client = connected(
            RuntimeHttpClient,
            socket,
            ca,
            [grid._tracing, VERSION, RuntimeTokenHttpInterceptor(token)],
            retries,
            timeout=LONG_TIMEOUT,
        )
        task = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
    identify_process(task.task_id, task.run.run_id, task.context.node_id)
    grid.set_run(run_from_proto(task.run))
    status = SubStatus.FAILED
    try:
        with explained(), heartbeats(grid._runtime_client):
            try:
                yield grid
            finally:
                retries.max_tries = 1  # the SuperLink may have ended
        status = SubStatus.COMPLETED
    finally:
        with suppress(httpx.HTTPError):
            grid._runtime_client.PushTaskOutput(PushTaskOutputRequest(sub_status=status))
        grid.close()


def _acquire(socket: Path, ca: Path | None, run: int, retries: RetryInvoker) -> str:
    """The token of the run's task."""
    deadline = time.monotonic() + WAIT_SECONDS
    with closing(connected(RuntimeHttpClient, socket, ca, [VERSION], retries)) as client:
        while time.monotonic() < deadline:
            request = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
            acquired = client.AcquireTask(request)
            if acquired.token and acquired.task.run_id == run:
                return acquired.token
            time.sleep(POLL_SECONDS)
    raise TimeoutError(f"Flower's SuperLink has no run {run}")
