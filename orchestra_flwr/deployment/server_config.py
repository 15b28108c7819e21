"""The configuration of a server of real clients."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from orchestra_flwr.config import Config, DataConfig, LoggingConfig, OptionalPathText, Section
from orchestra_flwr.deployment.addresses import DEFAULT_SECURITY, WatchConfig, uses_tls
from orchestra_flwr.deployment.client_config import ClientMethodConfig
from orchestra_flwr.federation.clocks.none import NoClock

# What a server with a queue is started with; each run says all else.
OF_THE_SERVER = ("queue", "host", "port", "insecure", "security", "watch")
DISPLAY = ("progress", "format")  # of `logging`: also the server's, whose terminal it is
CLIENT_CHANNELS = 3  # of the images in the folder or zip of a real client


class ServerShareConfig(Section):
    """What clients get beside the models that they train."""

    encoder: bool = True
    every: int | None = Field(None, ge=1)  # rounds; None: at the end alone
    wait: float = Field(60.0, ge=0)  # seconds that the end waits for clients that are away


class ServerConfig(Config):
    """A run with real clients, and where its server listens."""

    file = "server"
    foreign = ("federation.clients", "engine", "clock", "partition")

    host: str = Field(min_length=1)
    port: int = Field(ge=0, le=65535)  # 0: any free one
    insecure: bool
    security: OptionalPathText  # None: see `keys_folder`
    watch: WatchConfig = WatchConfig()
    queue: OptionalPathText = None  # a folder of runs, one after the other; None: this run alone
    share: ServerShareConfig = ServerShareConfig()

    @model_validator(mode="after")
    def _clients_are_not_counted_ahead(self) -> Self:
        clients, least = self.federation.clients, self.federation.min_clients
        # A resumed run keeps the number that it began with, on which shapes may depend.
        if least is None or (clients != least and self.resume is None):
            raise ValueError(
                f"federation.clients={clients}: real clients come and go; "
                "set federation.min_clients, the number that a round waits for"
            )
        return self

    @model_validator(mode="after")
    def _runs_come_from_one_place(self) -> Self:
        if self.queue is not None and self.resume is not None:
            raise ValueError(
                f"resume={self.resume}: must be null with queue=, which goes on by itself"
            )
        return self

    @model_validator(mode="after")
    def _real_clients_can_take_part(self) -> Self:
        from orchestra_flwr.methods import release_of  # imports torch

        release = release_of(self)
        if release and release.exposes:
            raise ValueError(
                f"method={self.method.name}: real clients do not send {release.exposes}, "
                "only simulated ones do"
            )
        if not self.exchange.plugin.deployable:
            raise ValueError(
                f"exchange={self.exchange.name}: real clients cannot take part in it, "
                "only simulated ones can"
            )
        if self.attack.name != "none":
            raise ValueError(
                f"attack={self.attack.name}: must be none, only simulated clients attack"
            )
        if self.evaluation.clients:
            raise ValueError(
                "evaluation.clients=true: must be false, real clients' classes are not known, "
                "only simulated ones'"
            )
        if self.data.channels != CLIENT_CHANNELS:
            raise ValueError(
                f"data={self.data.name}: must have images of {CLIENT_CHANNELS} channels, as real "
                f"clients' images have, not of {self.data.channels}"
            )
        if self.shift.name != "none":
            raise ValueError(
                f"shift={self.shift.name}: must be none, real clients' images are as they are"
            )
        return self

    def unread(self) -> dict[str, str]:
        """Also what real clients decide themselves."""
        unread, watch = super().unread(), self.watch.unread()
        if self.queue is not None:
            others = set(type(self).model_fields) - {*OF_THE_SERVER, "plugins", "logging"}
            others |= {f"logging.{name}" for name in set(LoggingConfig.model_fields) - {*DISPLAY}}
            of_runs = dict.fromkeys(others, "with queue=: orchestra-submit says it for each run")
            display = {key: why for key, why in unread.items() if key == "logging.progress"}
            return of_runs | display | watch
        # Real clients can be late.
        for key in ("federation.min_clients", "federation.min_images", *NoClock.unread(self)):
            unread.pop(key, None)
        own = [f"method.{name}" for name in ClientMethodConfig.model_fields]
        unread |= dict.fromkeys(own, "from a server: each client's own command says it")
        if not self.share.encoder:
            unread |= dict.fromkeys(("share.every", "share.wait"), "with share.encoder=false")
        only_simulated = ("engine", "clock", "partition")
        return unread | watch | dict.fromkeys(only_simulated, "with real clients, only simulated")

    @property
    def keys_folder(self) -> Path:
        """The folder of keys, whether it exists or not."""
        return Path(self.security or DEFAULT_SECURITY)

    @property
    def tls(self) -> bool:
        """Whether the server speaks TLS: always, but for `insecure` and keyless loopback."""
        named = self.security is not None
        if self.resume is not None and self.security == DEFAULT_SECURITY:
            named = False  # earlier versions wrote the default into the run's config.yaml
        return uses_tls(self.host, self.insecure, named, self.keys_folder / "server.crt")

    @property
    def has_images(self) -> bool:
        """Whether the server has images of its own, to evaluate encoders on."""
        return self.data.name != "image_folder" or bool(self.data.options.get("root"))

    def for_clients(self) -> Config:
        """The configuration that is sent to clients: without the server's paths and addresses.

        Options of the source of images, the server's own, stay here, whatever a user's source
        calls them; so do those of engine, clock and partition, which only simulations have.
        """
        values = self.model_dump(include=set(Config.model_fields))
        values |= {
            "run_dir": None,
            "init": None,
            "resume": None,
            "resume_round": None,
            "engine": "inline",
            "clock": "none",
            "partition": "iid",
            "logging": {},
        }
        values["model"] = self.model.without_folders().model_dump()
        values["data"] = {name: values["data"][name] for name in DataConfig.model_fields}
        return Config.model_validate(values)
