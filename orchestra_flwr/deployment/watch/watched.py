"""What a watched process shows, at `/`, `/status` and `/metrics`."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestra_flwr.deployment.addresses import WatchConfig
from orchestra_flwr.deployment.watch.figures import exposed
from orchestra_flwr.deployment.watch.web_server import Answer, serving
from orchestra_flwr.reporting.run_folder import finite

PAGE = Path(__file__).with_name("page.html")


@contextmanager
def watched(
    config: WatchConfig, status: Callable[[], dict[str, Any]], report: Callable[[str], None]
) -> Iterator[None]:
    """Shows how a process is doing at the configured address, if there is one, in the block.

    `status` gives the content of `/status`, and of `/metrics` as far as `FIGURES` names it; it is
    called from other threads.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    if config.port is None:
        yield
        return
    page = _page()
    paths = {
        "/": lambda: page,
        "/status": lambda: Answer.json(finite(status())),
        "/metrics": lambda: exposed(status()),
    }
    with serving(config.host, config.port, paths) as port:
        host = f"[{config.host}]" if ":" in config.host else config.host
        report(f"to be watched at http://{host}:{port}/")
        yield


def _page() -> Answer:
    """The page, with a policy that lets nothing run or load but what is in it, and `/status`."""
    html = PAGE.read_text()
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    policy = (
        f"default-src 'none'; script-src {_source(script)}; style-src {_source(style)}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return Answer(html.encode(), "text/html; charset=utf-8", policy=policy)


def _source(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
