"""What stands behind the gate in its tests: an application at a socket."""

import contextlib
import logging
import tempfile
import threading
import time
from pathlib import Path

import uvicorn


def wait(condition, seconds=5.0):
    """Polls until there is something, which it returns."""
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
    return result


@contextlib.contextmanager
def serving(application, path=None, **options):
    """Serves at a socket, by default one in a folder of its own; its path."""
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    options |= {"lifespan": "off", "log_config": None, "timeout_graceful_shutdown": 1}
    with tempfile.TemporaryDirectory(prefix="orch") as folder:
        path = path or Path(folder) / "link"
        server = uvicorn.Server(uvicorn.Config(application, uds=str(path), **options))
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            wait(lambda: server.started)
            yield path
        finally:
            server.should_exit = True
            thread.join()
