"""Drops the roles of docstrings, :class: and :func:, which this theme shows as text. A hook."""

import re
from typing import Any

ROLE = re.compile(r":(?:class|func|meth|attr|mod):(<code[^>]*>)(?:~[\w.]+\.)?")


def on_page_content(html: str, **about: Any) -> str:
    """Leaves the names, of those with ~ the last part, as Sphinx shows them."""
    return ROLE.sub(r"\1", html)
