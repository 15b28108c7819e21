"""What a watched process shows, at `/`, `/status` and `/metrics`."""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.responses import HTMLResponse, Response

from orchestra_flwr.deployment.addresses import WatchConfig
from orchestra_flwr.deployment.watch.figures import exposed
from orchestra_flwr.files import finite

PAGE = Path(__file__).with_name("page.html")


@contextmanager
def watched(
    config: WatchConfig, status: Callable[[], dict[str, Any]], report: Callable[[str], None]
) -> Iterator[None]:
    """During the block, shows how a process is doing at the configured address, if there is one.

    `status` gives the content of `/status`, and of `/metrics` as far as `FIGURES` names it; it is
    called from other threads.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    if config.port is None:
        yield
        return
    # 3 MB that a board saves if nobody watches it.
    from orchestra_flwr.deployment.watch.web_server import serving

    page = _page()
    paths = {
        "/": lambda: page,
        "/status": lambda: _json(status()),
        "/metrics": lambda: exposed(status()),
    }
    with serving(config.host, config.port, paths) as port:
        host = f"[{config.host}]" if ":" in config.host else config.host
        report(f"to be watched at http://{host}:{port}/")
        yield


def _json(values: dict[str, Any]) -> Response:
    # As ASCII: names of folders may hold bytes that are not UTF-8.
    return Response(json.dumps(finite(values), allow_nan=False), media_type="application/json")


def _page() -> Response:
    """The page, with a policy that lets nothing run or load but what is in it, and `/status`."""
    html = PAGE.read_text("utf-8")
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    policy = (
        f"default-src 'none'; script-src {_source(script)}; style-src {_source(style)}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return HTMLResponse(html, headers={"Content-Security-Policy": policy})


def _source(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
