"""What a client takes from a server's configuration, and what it refuses."""

from flwr.app import ConfigRecord

from orchestra_flwr import __version__
from orchestra_flwr.config import Config, requested_plugins
from orchestra_flwr.deployment.client_config import ClientConfig
from orchestra_flwr.deployment.client_work.refusal import RefusalError
from orchestra_flwr.federation.messages.failures import Failure
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.machine_limits import usable_cpus
from orchestra_flwr.methods import release_of
from orchestra_flwr.plugins import has_changed
from orchestra_flwr.training import build_learner
from orchestra_flwr.training.needed_memory import check_memory


def check_version(server: str) -> None:
    """Refuses a server of another version.

    Raises:
        RefusalError: says what to install.
    """
    if server != __version__:
        raise RefusalError(
            f"the server runs orchestra_flwr {server}, this client {__version__}: "
            "install the same version on both",
            Failure.OTHER_VERSION,
        )


class ReceivedSettings:
    """Reads the configurations that servers send to one client, whose own is `config`.

    What it does not accept raises a :class:`RefusalError`, a wrong key or value a ConfigError.
    """

    def __init__(self, config: ClientConfig) -> None:
        self._config = config

    def received(self, task: ConfigRecord) -> Config:
        """The server's configuration; packages that this client does not allow are not imported.

        Raises:
            RefusalError: it names packages that this client does not allow.
            ConfigError: a key or a value is not allowed.
        """
        text = str(task["config"])
        allowed = self._config.plugins
        wanted = requested_plugins(text)
        if not set(wanted) <= set(allowed):
            raise RefusalError(
                f"the server asks for plugins=[{','.join(wanted)}], this client allows "
                f"plugins=[{','.join(allowed)}]: install the packages here and start it with "
                "that setting if you trust them",
                Failure.PLUGINS_REFUSED,
            )
        return Config.from_json(text)

    def for_this_machine(self, config: Config) -> Config:
        """The server's configuration with this machine's device, threads, precision and teacher.

        Raises:
            RefusalError: it exposes single images (the server refuses that too, but it may run
                other code than ours), or shows single updates to a server that shall see sums.
            ConfigError: this machine's memory cannot hold the model.
        """
        if self._config.privacy.secure_aggregation and not config.privacy.secure_aggregation:
            raise RefusalError(
                "the server would see this client's own update, and privacy.secure_aggregation="
                "true here allows sums only: set it at the server as well",
                Failure.PRIVACY_REFUSED,
            )
        release = release_of(config)
        if release is not None and release.exposes:
            raise RefusalError(
                f"the server asks for {release.exposes}, which this client does not send",
                Failure.PRIVACY_REFUSED,
            )
        local = self._config.training
        machine = {
            "threads": local.threads or usable_cpus(),
            "precision": local.precision or config.training.precision,
        }
        training = config.training.model_copy(update=machine)
        options = set(config.method.plugin.Settings.model_fields)
        method = config.method.model_copy(update=self._config.method.model_dump(include=options))
        values = {"method": method, "training": training, "device": self._config.device}
        here = config.model_copy(update=values)
        check_memory(here, here.data.channels)
        return here

    def check_model(self, config: Config, server_schema: str) -> int | None:
        """Refuses a server that trains on other images, another model, or with other plug-ins.

        Returns:
            How many clients the run has places for; None: any number.

        Raises:
            RefusalError: says what to install, or to start the client with.
        """
        size, wanted = config.data.image_size, self._config.data.image_size
        if wanted is not None and wanted != size:
            raise RefusalError(
                f"the server trains on images of {size} x {size} pixels, this client has "
                f"data.image_size={wanted}: start it with data.image_size={size}, or without it",
                Failure.SETTINGS_REFUSED,
            )
        for package in config.plugins:
            # The server may have the new files, which a client that is started again takes as well.
            if has_changed(package):
                raise RefusalError(
                    f"plugins=[{package}]: its files have changed since this client imported "
                    "them: start the client again",
                    Failure.OTHER_VERSION,
                )
        learner = build_learner(config, config.data.channels)
        schema = Schemas.of(learner, config).fingerprint
        if schema != server_schema:
            versions = "the same version of orchestra_flwr"
            if config.plugins:
                versions += f", and of {', '.join(config.plugins)},"
            raise RefusalError(
                f"the server's model has schema {server_schema}, this client's {schema}: "
                f"install {versions} on both",
                Failure.OTHER_VERSION,
            )
        return learner.capacity
