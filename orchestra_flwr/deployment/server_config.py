"""The configuration of a server of real clients."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from orchestra_flwr.config import Config
from orchestra_flwr.deployment.addresses import uses_tls


class ServerConfig(Config):
    """A run with real clients, and where its server listens."""

    file = "server"

    host: str = Field(min_length=1)
    port: int = Field(ge=0, le=65535)  # 0: any free one
    insecure: bool
    security: str

    @model_validator(mode="after")
    def _clients_are_not_counted_ahead(self) -> ServerConfig:
        clients, least = self.federation.clients, self.federation.min_clients
        if least is None or clients != least:
            raise ValueError(
                f"federation.clients={clients}: real clients come and go; "
                "set federation.min_clients, the number that a round waits for"
            )
        return self

    @model_validator(mode="after")
    def _features_stay_with_real_clients(self) -> ServerConfig:
        if self.clustering.name == "features":
            raise ValueError(
                "clustering=features: real clients send no features of single images; "
                "must be sinkhorn or private"
            )
        return self

    @property
    def tls(self) -> bool:
        """Whether the server speaks TLS: always, but for `insecure` and keyless loopback."""
        return uses_tls(self.host, self.insecure, Path(self.security) / "server.crt")

    @property
    def has_images(self) -> bool:
        """Whether the server has images of its own, to evaluate encoders on."""
        return self.data.name != "image_folder" or self.data.root is not None

    def for_clients(self) -> Config:
        """The configuration that is sent to clients: without the server's paths and addresses."""
        values = self.model_dump(include=set(Config.model_fields))
        values |= {"run_dir": None, "resume": None}
        values["data"] |= {"root": None, "cache": None}
        return Config.model_validate(values)
