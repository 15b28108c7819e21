"""How long the server's app waits for a SuperLink that runs but does not answer in time.

Checked against Flower 1.41 and 1.42: `make_simple_http_retry_invoker`, which tries for ever, but
ends this process by SIGINT where a run is over, and mistakes a TLS handshake that takes too long
for a wrong certificate.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
from flwr.supercore.retry import RetryInvoker, RetryState, exponential

from orchestra_flwr.flower.program_faults import PATIENCE_SECONDS
from orchestra_flwr.flower.socket_client import HOST
from orchestra_flwr.flower.streaming_grid import EngineStoppedError

NOTICE_SECONDS = 10.0  # a request that has failed for so long is reported
MAX_PAUSE = 5  # seconds between two attempts
BUSY = {502, 503, 504}
RUN_IS_OVER = {401, 403}


def patient_retries(report: Callable[[str], None]) -> RetryInvoker:
    """Sends a request again until it is answered, for at most `PATIENCE_SECONDS`.

    The process that started the SuperLink sees at once whether it still runs.

    Args:
        report: takes a line when nothing was answered for a while, and when something is again;
            called from the thread that sends the request.
    """
    silent = False

    def failed(state: RetryState) -> None:
        nonlocal silent
        if not silent and state.elapsed_time > NOTICE_SECONDS:
            silent = True
            report(
                f"Flower's SuperLink has not answered for {state.elapsed_time:.0f} s, it may be "
                f"overloaded: trying again for {PATIENCE_SECONDS / 60:g} minutes"
            )

    def answered(state: RetryState) -> None:
        nonlocal silent
        if silent:
            silent = False
            report(f"Flower's SuperLink answers again after {state.elapsed_time:.0f} s")

    return RetryInvoker(
        lambda: exponential(max_delay=MAX_PAUSE),
        (httpx.TransportError, httpx.HTTPStatusError),
        max_tries=None,
        max_time=PATIENCE_SECONDS,
        on_backoff=failed,
        on_success=answered,
        should_giveup=_is_final,
    )


def _is_final(error: Exception) -> bool:
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code not in BUSY
    return not isinstance(error, httpx.TimeoutException) and "CERTIFICATE" in str(error)


@contextmanager
def explained() -> Iterator[None]:
    """Says in words why a request to the SuperLink failed for good.

    Raises:
        EngineStoppedError: the SuperLink has ended the run, refuses a request, or did not answer
            for `PATIENCE_SECONDS`.
    """
    try:
        yield
    except (httpx.HTTPStatusError, httpx.TransportError) as error:
        if error.request.url.host != HOST:  # somebody else's, such as a tracker's
            raise
        if isinstance(error, httpx.HTTPStatusError):
            over = error.response.status_code in RUN_IS_OVER
            why = "has ended this run" if over else f"refuses a request ({error})"
        else:
            what = str(error) or type(error).__name__
            why = f"has not answered for {PATIENCE_SECONDS / 60:g} minutes ({what})"
        raise EngineStoppedError(f"Flower's SuperLink {why}") from error
