"""Where a server or client shows how it is doing."""

from pydantic import Field

from orchestra_flwr.config import Section


class WatchConfig(Section):
    """The address of `/status`, `/metrics` and the page; nobody has to log in there."""

    host: str = Field("127.0.0.1", min_length=1)
    port: int | None = Field(None, ge=0, le=65535)  # None: off; 0: any free one
