"""The federation of a deployment: the same as the simulation's, on a SuperLink's clients.

It is a process of its own, so that the gate answers clients while averages and scores are
computed. `run_server.py` starts it, sends it its task through a channel, and shows its progress.
"""

import contextlib
import os
import sys
import threading
from multiprocessing.connection import Connection

from orchestra_flwr.deployment.channel.json_pipe import Channel, ChannelClosedError


def main() -> None:
    """Runs the federation that the server describes; the argument: the channel's descriptor."""
    with Channel(Connection(int(sys.argv[1]))) as channel:
        task = channel.receive()
        # A tracker, or what fetches weights, may need the proxy.
        os.environ |= task["environment"]
        # Users' packages may lie beside the program that was started, and not be installed.
        sys.path += [folder for folder in task["path"] if folder not in sys.path]
        finished = threading.Event()
        threading.Thread(target=_end_with, args=(channel, finished), daemon=True).start()
        try:
            # Imported with the channel open, so that a failure is reported.
            from orchestra_flwr.deployment.processes.federation_run import serve

            serve(channel, task)
        except ChannelClosedError:
            os._exit(1)  # nobody reads a message any more
        except Exception as error:
            back = getattr(error, "resume_round", None)
            channel.send({"event": "failed", "error": _failure(error), "resume_round": back})
            raise
        finally:
            finished.set()


def _end_with(channel: Channel, finished: threading.Event) -> None:
    """Ends this process at once when run_server.py has ended: Flower would try for minutes."""
    with contextlib.suppress(ChannelClosedError):
        channel.receive()  # nothing more is sent: it returns at the end
    if not finished.is_set():
        os._exit(1)


def _failure(error: Exception) -> str:
    expected = type(error).__name__ in {"FederationError", "ConfigError", "EngineStoppedError"}
    return str(error) if expected else f"{type(error).__name__}: {error}"
