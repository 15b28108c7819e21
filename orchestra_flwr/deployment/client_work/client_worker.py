"""A real client's work: its images stay in memory, and it trains on them when the server asks."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, cast

from flwr.app import ConfigRecord, MetricRecord, RecordDict

from orchestra_flwr import __version__
from orchestra_flwr.config import Config, ConfigError, DataConfig
from orchestra_flwr.console.text import counted
from orchestra_flwr.data import ImageSet, count_distinct, load_dataset, shrink_warning
from orchestra_flwr.data.image_files.decoded_cache import cache_dir, only_the_latest
from orchestra_flwr.deployment.client_config import ClientConfig
from orchestra_flwr.deployment.client_work.encoder_store import EncoderStore
from orchestra_flwr.deployment.client_work.received_settings import ReceivedSettings, check_version
from orchestra_flwr.deployment.client_work.refusal import (
    RefusalError,
    about_full_disk,
    as_refusal,
    failure_of,
)
from orchestra_flwr.deployment.client_work.release_history import ReleaseHistory
from orchestra_flwr.deployment.client_work.sums import Sums
from orchestra_flwr.deployment.keys.client_keys import NAME_PATTERN
from orchestra_flwr.deployment.keys.key_files import COMMAND
from orchestra_flwr.deployment.keys.peers import NO_SIGNATURES, Signatures
from orchestra_flwr.federation.client.answers import evaluate_reply, train_reply
from orchestra_flwr.federation.client.numpy_client import OrchestraClient
from orchestra_flwr.federation.client.state_folder import ClientStateFolder
from orchestra_flwr.federation.messages.failures import MAX_ERROR_TEXT, Failure
from orchestra_flwr.federation.messages.fields import (
    CONFIG,
    ENCODER,
    ENCODER_KIND,
    FROZEN,
    METRICS,
    PERSONAL,
    REGISTERED,
    RUN,
    SECURE_STAGE,
    SMALLEST_GROUP,
    STATE_OF,
    TRAINED,
)
from orchestra_flwr.federation.messages.frozen_weights import FrozenStore
from orchestra_flwr.flower.client_tasks import Request
from orchestra_flwr.methods import check_client, labels_for, release_of
from orchestra_flwr.plugins import PluginError, describe
from orchestra_flwr.privacy.secure_sums import SumRefusedError
from orchestra_flwr.training import resolve_device


class ClientWorker:
    """Answers the server's messages.

    What goes wrong is reported here in full; the server gets one word of it.

    Attributes:
        problem: what went wrong in the latest answer; None: nothing, all is well.

    Args:
        config: the client's configuration.
        name: the client's name.
        folder: for the record of releases, and for the state of this client in runs.
        signatures: of secure aggregation.

    Raises:
        ConfigError: the record of releases or of sums cannot be read, or the device is not there.
    """

    KINDS: ClassVar = {  # as Flower's
        "query": "greet",
        "train": "train",
        "evaluate": "evaluate",
        ENCODER_KIND: "take_encoder",
    }

    def __init__(
        self,
        config: ClientConfig,
        name: str,
        folder: Path,
        report: Callable[[str], None],
        signatures: Signatures = NO_SIGNATURES,
    ) -> None:
        self._config = config
        self._settings = ReceivedSettings(config)
        self._name = name
        self._report = report
        self._folder = folder
        self._frozen_store = FrozenStore(folder / "frozen")
        self._encoders = EncoderStore(folder, 1e6 * config.encoder_megabytes, config.plugins)
        self._releases = ReleaseHistory(config, folder)
        self._sums = Sums(config, name, folder, signatures)
        self._device = resolve_device(config.device)
        self._images: ImageSet | None = None
        self._image_size: int | None = None
        self.problem: str | None = None
        self._latest: tuple[tuple[Config, str], OrchestraClient] | None = None

    def answer(self, request: Request) -> RecordDict | Failure:
        """The answer to a message of this app; for an exception, the word for it."""
        work = getattr(self, self.KINDS[request.kind])
        try:
            answer: RecordDict = work(request.content)
        except Exception as error:
            self.problem = _describe(error)
            self._report(f"failed: {self.problem}")
            return failure_of(error)
        if work in (self.train, self.evaluate):  # a greeting sets it itself
            self.problem = None
        return answer

    def greet(self, content: RecordDict) -> RecordDict:
        """Sends this client's name, with its number of images or the word for why it refuses."""
        task = content.config_records[CONFIG]
        greeting: dict[str, Any] = {"client": self._name, "version": __version__}
        try:
            config, places = self._accept(task)
            count, size = len(self._load(config)), config.data.image_size
            # With sums the server learns how many images all clients have together, not each.
            secure = config.privacy.secure_aggregation
            greeting["images"] = config.federation.min_images if secure else count
            if FROZEN in task:
                greeting[FROZEN] = self._frozen_store.load(str(task[FROZEN])) is not None
            self.problem = None
            self._report(
                f"takes part with {counted(count, 'image')} of {size} x {size} pixels: "
                f"{config.method.name}, {config.model.name}, "
                f"{counted(config.federation.rounds, 'round')}"
            )
            if places is not None:  # the server alone knows who has them
                self._report(
                    f"the run has places for {places} clients: those that come when others have "
                    "them all, as the server says then, are not asked to train"
                )
            if secure:
                self._report(self._sums.promise)
        except (RefusalError, ConfigError, PluginError) as refusal:
            greeting["refusal"] = failure_of(refusal).word
            if (problem := _cut(str(refusal))) != self.problem:  # the server asks again and again
                self._report(f"cannot take part: {problem}")
            self.problem = problem
        return RecordDict({CONFIG: ConfigRecord(greeting)})

    def train(self, content: RecordDict) -> RecordDict:
        """A round on this client's images, or a stage of a secure one."""
        task = content.config_records[CONFIG]
        received = self._settings.received(task)
        older = self._older_state(task)

        def made() -> OrchestraClient:
            return self._prepared(received, task)[0]

        if SECURE_STAGE in task:
            reply = self._sums.answer(received, content, made, self._report)
        else:
            reply = self._trained(received, content)
        if older is not None:
            cast(ConfigRecord, reply[CONFIG])[STATE_OF] = older
        return reply

    def _trained(self, received: Config, content: RecordDict) -> RecordDict:
        task = content.config_records[CONFIG]
        round_ = int(task["round"])  # type: ignore[arg-type]
        release = release_of(received)
        label = release.label if release else "state"
        place = _place(round_)
        self._report(f"{place}: {'training' if task['train'] else f'first {label}'}")
        client, unsent = self._prepared(received, task)
        reply = train_reply(client, content)
        # Not by `metric_records`: that view is a reference cycle, which keeps the model as well.
        metrics = cast(MetricRecord, reply[METRICS])
        loss = [float(v) for k, v in metrics.items() if k.startswith("loss/")]  # type: ignore[arg-type]
        steps = counted(int(str(metrics["steps"])), "step")
        trained = [steps, f"loss {sum(loss):.3f}"] if loss else []
        if metrics.get(SMALLEST_GROUP) == 0:
            unsent = f"fewer than privacy.k_min={received.privacy.k_min} different images"
        without = [f"sent no {label}: {unsent}"] if unsent else []
        if not trained and not without:
            without = [f"sent first {label}"]
        facts = [*trained, *without, f"{metrics['seconds']:.1f} s"]
        self._report(f"{place}: {', '.join(facts)}")
        if round_ == received.federation.rounds:
            self._report("that was the last round: waiting for another run")
        return reply

    def evaluate(self, content: RecordDict) -> RecordDict:
        """The averaged encoder's scores on this client's images."""
        task = content.config_records[CONFIG]
        round_ = int(task["round"])  # type: ignore[arg-type]
        received = self._settings.received(task)
        reply = evaluate_reply(self._client(received, str(task.get(RUN, ""))), content)
        scores: Mapping[str, Any] = reply.metric_records[METRICS]
        if received.evaluation.unsupervised:
            self._report(
                f"{_place(round_)}: the average has alignment {scores['alignment']:.3f}, "
                f"uniformity {scores['uniformity']:.3f}, effective rank "
                f"{scores['effective_rank']:.3g} on the images here"
            )
        if received.evaluation.personal_by_clients:
            self._report(f"{_place(round_)}: {self._about_head(received, scores.get(PERSONAL))}")
        return reply

    def take_encoder(self, content: RecordDict) -> RecordDict:
        """Stores the encoder, or says whether the one that is offered is wanted."""
        word = self._encoders.answer(content, self._report)
        return RecordDict({CONFIG: ConfigRecord({ENCODER: word})})

    def _about_head(self, received: Config, accuracy: float | None) -> str:
        head = f"accuracy of a head from {received.evaluation.personal_labels} labels here"
        if accuracy is not None:
            return f"{head} {100 * accuracy:.1f} %, sent"
        if self._config.share.personal_accuracy:
            return f"{head} not sent: no more images have a label (a folder for each class)"
        return f"{head} not sent: share.personal_accuracy=false"

    def _client(self, received: Config, run: str) -> OrchestraClient:
        """The client for this configuration and run; the latest one if they are the same."""
        if self._latest is None or self._latest[0] != (received, run):
            config = self._settings.for_this_machine(received)
            images = self._load(config)
            with as_refusal(Failure.DATA_UNSUITABLE):
                labels = labels_for(config, images)
            folder = ClientStateFolder(self._folder / "runs", run) if run else None
            client = OrchestraClient(
                config,
                self._name,
                images.images,
                labels,
                state_folder=folder,
                frozen_store=self._frozen_store,
                personal=images.labels if self._config.share.personal_accuracy else None,
                secret_noise=True,
            )
            # Checked here as well as at the greeting: a round may bring another configuration.
            self._releases.check(received, len(client.images))
            self._sums.check(received)
            self._latest = ((received, run), client)
        return self._latest[1]

    def _prepared(self, received: Config, task: ConfigRecord) -> tuple[OrchestraClient, str]:
        """The client, once its release is recorded, and why nothing is released, or ""."""
        client = self._client(received, str(task.get(RUN, "")))
        if line := self._releases.missing(received, task):
            self._report(line)
        return client, self._releases.record(received, task)

    def _older_state(self, task: ConfigRecord) -> int | None:
        """The round of this client's state, 0 without one, if its server used a later one.

        Files of later rounds, to which a server that was restored from a copy has not come again,
        are no state to go on from.
        """
        if TRAINED not in task or RUN not in task:
            return None
        latest, round_ = int(str(task[TRAINED])), int(str(task["round"]))
        folder = ClientStateFolder(self._folder / "runs", str(task[RUN]))
        state = folder.round_before(round_, int(str(task.get("stage", 0))))
        if state is not None and state >= latest:
            return None
        found = f"nothing from before round {round_}: it begins afresh"
        if state is not None:
            found = f"only its state of round {state}: it goes on from that"
        self._report(
            f"this client trained in round {latest} of this run, and {self._folder / 'runs'} holds "
            f"{found}"
        )
        return state or 0

    def _accept(self, task: ConfigRecord) -> tuple[Config, int | None]:
        """The configuration of a run in which this client can take part, on this machine.

        Returns:
            And how many clients can; None: any number.
        """
        check_version(str(task["version"]))
        self._check_name(str(task.get(REGISTERED, self._name)))
        received = self._settings.received(task)
        config = self._settings.for_this_machine(received)
        places = self._settings.check_model(config, str(task["schema"]))
        images, least = self._load(config), config.federation.min_images
        if (count := count_distinct(images.images, least)) < least:
            raise RefusalError(
                f"{count} different images, the server asks for at least {least}: "
                f"{self._way_to_more(len(images))}, or lower federation.min_images at the server",
                Failure.TOO_FEW_IMAGES,
            )
        self._releases.check(received, len(images))
        self._sums.check(received)
        with as_refusal(Failure.DATA_UNSUITABLE):
            labels_for(config, images)
        check_client(config, self._name)
        return config, places

    def _way_to_more(self, count: int) -> str:
        """What gives this client more than `count` images."""
        data = self._config.data
        if count == data.most:  # those beyond it were left out
            return f"raise {data.key_of_most}={count}, if {data.root} holds more"
        return f"add images to {data.root}"

    def _check_name(self, registered: str) -> None:
        """Compares the name of this client's key at the server with the one that it has here."""
        if registered != self._name:
            if not re.fullmatch(NAME_PATTERN, registered):  # it goes into commands to paste
                refused = "the server gives this client's key a name that no key can have"
                raise RefusalError(refused, Failure.OTHER_NAME)
            name, public = registered, self._config.keys_folder / "client.pub"
            raise RefusalError(
                f"the server refuses this client: its key is registered there as {name}, and named "
                f"{self._name} in {public}. Either end that file with {name} and start this client "
                f"again, or run at the server: {COMMAND} revoke name={name}, then register "
                f"key={public.name}",
                Failure.OTHER_NAME,
            )

    def _load(self, config: Config) -> ImageSet:
        """This client's images on its device, of the size that the server trains on."""
        if self._images is None or self._image_size != config.data.image_size:
            local, name = self._config.data, "image_folder"
            cache = cache_dir(local.cache) / self._name  # its own: earlier images are removed
            data = {
                "name": name,
                "root": local.root,
                "image_size": config.data.image_size,
                "train_limit": local.most,
                "cache": str(cache),
            }
            with as_refusal(Failure.DATA_UNREADABLE), only_the_latest(cache, name):
                dataset = load_dataset(DataConfig.model_validate(data))
            if dataset.skipped:
                self._report(f"{len(dataset.skipped)} image files cannot be read and are left out")
            if warning := shrink_warning(dataset):
                self._report(f"{warning}; the server sets it")
            self._images = dataset.train.to(self._device)
            self._image_size = config.data.image_size
        return self._images


def _place(round_: int) -> str:
    return f"round {round_}" if round_ else "before training"


def _describe(error: Exception) -> str:
    known = isinstance(error, RefusalError | SumRefusedError)
    return _cut(str(error) if known else about_full_disk(error) or describe(error))


def _cut(text: str) -> str:
    """Limits a text, perhaps a server's, that is shown and written to a file every few seconds."""
    return text if len(text) <= MAX_ERROR_TEXT else f"{text[:MAX_ERROR_TEXT]}..."
