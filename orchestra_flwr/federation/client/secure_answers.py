"""How a client answers the stages of secure aggregation, in simulations and deployments."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from orchestra_flwr.config import Config
from orchestra_flwr.federation.client.answers import received_arrays
from orchestra_flwr.federation.client.numpy_client import OrchestraClient
from orchestra_flwr.federation.messages.fields import (
    ARRAYS,
    CONFIG,
    SECURE_STAGE,
    SECURE_STATE,
    SECURE_TEXT,
)
from orchestra_flwr.federation.secure_aggregation.basis import basis_of
from orchestra_flwr.federation.secure_aggregation.sum_codec import Numbers, Start, codec_of
from orchestra_flwr.flower.arrays import to_record
from orchestra_flwr.methods import Role
from orchestra_flwr.privacy.secure_sums import Confirmations, Occasion, SumClient, SumRefusedError
from orchestra_flwr.privacy.secure_sums.sum_client import Sign, Verify
from orchestra_flwr.seeding import ClientSeed


@dataclass
class SecureAnswers:
    """One client's answers in the sums of its runs; it is in one sum at a time."""

    name: str  # of the client
    least: int = 0  # clients that a sum must have
    sign: Sign | None = None  # as for :class:`SumClient`
    verify: Verify | None = None  # as for :class:`SumClient`
    confirmations: Confirmations = field(default_factory=Confirmations)  # of all its sums
    current: SumClient | None = None  # the sum that it is in

    def answer(self, content: RecordDict, client: Callable[[], OrchestraClient]) -> RecordDict:
        """The reply to a task of one of the stages.

        Args:
            content: of the message, which loses its arrays.
            client: makes the client that trains; called in the stage in which it does.

        Raises:
            SumRefusedError: the server asks for what this client does not do.
            ValueError: as :func:`train_reply`.
            TrainingError: a loss that is not finite.
        """
        task = content.config_records[CONFIG]
        stage = str(task[SECURE_STAGE])
        text: Any
        try:
            asked = json.loads(str(task[SECURE_TEXT]))
            if stage == "keys":
                self.current = self._begun(asked, int(str(task["round"])))
            if self.current is None:
                raise SumRefusedError(f"asked for stage {stage} of a sum that it is not in")
            match stage:
                case "keys":
                    text = self.current.advertise()
                case "shares":
                    text = self.current.share(asked["roster"])
                case "boxes":
                    text = self.current.hold(asked["boxes"], asked["graph"])
                case "input":
                    alive = [str(name) for name in asked["alive"]]
                case "confirm":
                    text = self.current.confirm(asked["survivors"], self.confirmations)
                case "unmask":
                    text = self.current.unmask(asked["signatures"], asked["views"])
                case _:
                    raise SumRefusedError(f"{stage!r} is no stage of secure aggregation")
        except SumRefusedError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            self.current = None  # it answers nothing more of this sum
            raise SumRefusedError(f"stage {stage}: a malformed message: {error!r}") from error
        if stage == "input":
            return self._masked(self.current, alive, content, client())
        return self._reply(task, text)

    def _begun(self, asked: Any, round_: int) -> SumClient:
        layout = tuple((int(bits), int(size)) for bits, size in asked["layout"])
        run, attempt, noise = str(asked["run"]), str(asked["attempt"]), float(asked["noise"])
        occasion = Occasion(run, round_, attempt, layout, noise)
        return SumClient(self.name, occasion, sign=self.sign, verify=self.verify, least=self.least)

    def _masked(
        self, current: SumClient, alive: list[str], content: RecordDict, client: OrchestraClient
    ) -> RecordDict:
        """Trains, and masks the result."""
        task = content.config_records[CONFIG]
        round_ = int(str(task["round"]))
        if not task["train"] or round_ != current.occasion.round:
            raise SumRefusedError(f"round {round_} is not that of the sum, or trains nothing")
        codec = codec_of(client.config, client.schemas)
        if codec.layout != current.occasion.layout:
            raise SumRefusedError("the server agreed with the others on a vector of another length")
        if codec.noise != current.occasion.noise:
            raise SumRefusedError(
                f"the server agreed with the others on privacy.noise_multiplier="
                f"{current.occasion.noise:g}, and says {codec.noise:g} here"
            )
        basis = basis_of(content)
        arrays = received_arrays(client, content)
        parameters = [arrays[name] for name in client.receives]
        (trained, *rows), images, metrics = client.fit(parameters, dict(task))
        del metrics["model"]
        before = client.schemas.codec.decode(Role.SHARED.value, arrays)
        weight = weight_of_images(client.config, images)
        numbers = Numbers(weight, images, 0, metrics)
        if client.config.privacy.noise_multiplier > 0:
            metrics = {}  # their names might reveal what no noise covers
        seed = ClientSeed(client.config.seed, round_, self.name, client.secret_noise)
        vector = codec.encode(trained, Start(before, current.count), numbers, seed)
        view = current.mask(alive, vector, basis)
        reply = self._reply(task, {"metrics": sorted(metrics), "view": view})
        masked = {f"ring{8 * part.itemsize}": part for part in vector}
        # Rows are differentially private by themselves: `excluded.py` refuses runs with others.
        reply[ARRAYS] = to_record({**masked, **dict(zip(client.contributes, rows, strict=True))})
        return reply

    @staticmethod
    def _reply(task: ConfigRecord, text: Any) -> RecordDict:
        about = {"schema": task["schema"], SECURE_TEXT: json.dumps(text)}
        return RecordDict({CONFIG: ConfigRecord(about)})


def weight_of_images(config: Config, images: int) -> float:
    """The weight of a client with so many images in a sum, from 0 to 1."""
    federation, full = config.federation, config.privacy.full_weight
    if federation.weighting == "uniform" or full is None:
        return 1.0
    if federation.weighting == "batches":
        images = max(1, images // config.training.batch_size)
    return min(images, full) / full


def simulated_answer(
    name: str, content: RecordDict, client: Callable[[], OrchestraClient]
) -> RecordDict:
    """As :meth:`SecureAnswers.answer`, for a simulated client, which lives for one message.

    What it must remember travels with its reply and comes back with the next message: whoever
    simulates has all clients' images anyway. A real client's secrets never leave its memory.
    """
    task = content.config_records[CONFIG]
    state = str(task.get(SECURE_STATE, ""))
    answers = SecureAnswers(name, current=SumClient.from_state(state) if state else None)
    reply = answers.answer(content, client)
    assert answers.current is not None
    reply.config_records[CONFIG][SECURE_STATE] = answers.current.state()
    return reply
