"""The configuration of a real client."""

import os
from pathlib import Path
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from orchestra_flwr.config import (
    Composed,
    ConfigError,
    Device,
    LogFormat,
    OptionalPathText,
    PathText,
    Precision,
    Section,
    WithPlugins,
)
from orchestra_flwr.config.sections import MAX_THREADS
from orchestra_flwr.deployment.addresses import DEFAULT_SECURITY, WatchConfig, uses_tls
from orchestra_flwr.deployment.keys.client_keys import check_name
from orchestra_flwr.deployment.keys.server_address import host_of
from orchestra_flwr.extras import require
from orchestra_flwr.privacy.client_ledger import ClientBounds
from orchestra_flwr.privacy.secure_sums import MIN_COHORT


class ClientDataConfig(Section):
    """A client's own images."""

    root: OptionalPathText
    image_size: int | None = Field(ge=8, le=512)  # None: as the server says
    train_limit: int | None = Field(ge=1)
    limit: int | None = Field(None, ge=1)  # the former name of train_limit
    cache: OptionalPathText

    @property
    def most(self) -> int | None:
        """At most so many images; None: all."""
        return self.limit if self.train_limit is None else self.train_limit

    @property
    def key_of_most(self) -> str:
        """The key that sets `most`."""
        return "data.limit" if self.train_limit is None else "data.train_limit"


class ClientMethodConfig(Section):
    """Options of a method that each client sets itself, whatever its server says of them."""

    teacher: OptionalPathText = None
    teacher_weights: PathText = "pretrained"
    teacher_size: int | None = Field(None, ge=8, le=512)


class ClientTrainingConfig(Section):
    """How a client uses its machine."""

    threads: int | None = Field(ge=1, le=MAX_THREADS)  # None: all cores
    precision: Precision | None  # None: as the server says


class ClientPrivacyConfig(ClientBounds):
    """What a client allows, for sums as well."""

    secure_aggregation: bool = False  # true: runs without it are refused
    min_cohort: int = Field(MIN_COHORT, ge=MIN_COHORT)  # clients in a sum, at least
    # Most for its updates in noisy sums of all runs, at delta; None: as a run says.
    updates_epsilon: float | None = Field(None, ge=1e-4)

    def check_images(self, count: int) -> None:
        """Refuses a bound that protects no image, with so many of them.

        Raises:
            ConfigError: at this delta a mechanism may publish a whole image and meet its bound; or
                the extra `privacy` is not installed.
        """
        if self.updates_epsilon is not None:
            require("privacy.updates_epsilon", "privacy", "dp_accounting")
        bounded = self.epsilon is not None or self.total_epsilon is not None
        if bounded:
            require("privacy.epsilon, privacy.total_epsilon", "privacy", "dp_accounting")
        if bounded and self.delta >= 1 / count:
            raise ConfigError(
                f"privacy.delta={self.delta:g}: must be below 1 / {count} = {1 / count:.3g}, "
                f"since this client has {count} images"
            )


class ShareConfig(Section):
    """What a client sends beside its training, if its server asks for it."""

    personal_accuracy: bool = False  # of a head that it fits to some of its labels


class ClientLoggingConfig(Section):
    """How a client's lines are written."""

    format: LogFormat = "text"


class ClientConfig(WithPlugins, Composed):
    """One client of a real federation."""

    file = "client"

    server: OptionalPathText  # taken as it is written: [::1]:8443 is no list
    name: OptionalPathText
    data: ClientDataConfig
    method: ClientMethodConfig = ClientMethodConfig()
    training: ClientTrainingConfig
    privacy: ClientPrivacyConfig
    share: ShareConfig = ShareConfig()
    device: Device
    insecure: bool
    security: OptionalPathText  # None: see `keys_folder`
    state: PathText
    watch: WatchConfig = WatchConfig()
    logging: ClientLoggingConfig = ClientLoggingConfig()
    encoder_megabytes: float = Field(2000, ge=0)  # of the largest encoder that it stores

    @field_validator("name")
    @classmethod
    def _name_is_one(cls, value: str | None) -> str | None:
        return None if value is None else check_name(value)

    @field_validator("state", mode="before")
    @classmethod
    def _state_is_the_users_own(cls, value: Any) -> Any:
        if value is not None:
            return value
        home = os.environ.get("HOME") or "."
        base = os.environ.get("XDG_STATE_HOME") or f"{home}/.local/state"  # empty counts as not set
        return f"{base}/orchestra_flwr"

    @model_validator(mode="after")
    def _names_server_and_images(self) -> Self:
        host_of(self.server or "")
        if not self.data.root:
            raise ValueError("data.root must name a folder or a zip of this client's images")
        return self

    @model_validator(mode="after")
    def _bounds_cover_what_is_sent(self) -> Self:
        for key in ("epsilon", "total_epsilon"):
            if self.share.personal_accuracy and getattr(self.privacy, key) is not None:
                raise ValueError(
                    "share.personal_accuracy=true: the accuracy is not differentially private, "
                    f"must be false with privacy.{key}"
                )
        return self

    def unread(self) -> dict[str, str]:
        """Keys that have no effect with the values of others, and why."""
        unread, privacy = self.watch.unread(), self.privacy
        if self.data.train_limit is not None:
            unread["data.limit"] = "with data.train_limit, its new name"
        if self.method.teacher is None:
            options = ("method.teacher_weights", "method.teacher_size")
            unread |= dict.fromkeys(options, "without method.teacher")
        if {privacy.epsilon, privacy.total_epsilon, privacy.updates_epsilon} == {None}:
            unread["privacy.delta"] = "without a bound on an epsilon"
        return unread

    @property
    def host(self) -> str:
        """The server's host."""
        return host_of(str(self.server))

    @property
    def keys_folder(self) -> Path:
        """The folder of keys, whether it exists or not."""
        return Path(self.security or DEFAULT_SECURITY)

    @property
    def tls(self) -> bool:
        """Whether the client speaks TLS: always, but for `insecure` and keyless loopback."""
        files = (self.keys_folder / name for name in ("ca.crt", "client.key"))
        return uses_tls(self.host, self.insecure, self.security is not None, *files)

    @property
    def way_to_tls(self) -> str:
        """What has to be done for TLS, where the client speaks plain text."""
        keys = "put its ca.crt and this client's keys"
        if self.insecure:
            return f"leave out insecure=true, and {keys} into the folder of keys"
        return (
            f"there are no keys in {self.keys_folder.absolute()}: {keys} there, or name their "
            "folder by security="
        )
