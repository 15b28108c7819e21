"""How long a run will take and how much memory it needs, shown once, as soon as that is known."""

import math
import time
from collections.abc import Callable, Collection, Iterator

from orchestra_flwr.config import Config
from orchestra_flwr.console.text import counted, duration

SHORTEST, LONG = 60, 1800  # seconds: below the first nothing is shown, above the second advice
TRIED = 300  # seconds below which the first round soon tells more than trial steps
SOON = 30  # seconds into a round after which its first clients show how long it takes
SLOW = 300  # seconds of a worker's first client compared to which its start is short
LARGE_IMAGES = 64  # pixels; larger ones are advised against where a run takes long


def first_estimate(config: Config, seconds: float, workers: int) -> str | None:
    """How long training takes, judging by trial steps before it; None for a short run.

    Args:
        seconds: of training of all clients in all rounds, one after another.
        workers: clients that are trained at the same time.
    """
    federation = config.federation
    total = seconds / min(workers, max(1, round(federation.clients * federation.participation)))
    if total < TRIED:
        return None
    advice = f"; {_fewer_pixels(config)}" if total >= LONG and _has_large_images(config) else ""
    return (
        f"training takes about {duration(total)}, judging by a few trial steps; evaluation is not "
        f"included{advice}"
    )


def _has_large_images(config: Config) -> bool:
    return config.data.view_size > LARGE_IMAGES


def _fewer_pixels(config: Config) -> str:
    # Small views of large images are for pretrained networks, of which only a part is trained.
    key = (
        "image_size"
        if config.data.view_size == config.data.image_size
        else "augmentation.view_size"
    )
    return f"data.{key}={config.data.view_size // 2} would take about a quarter"


class RunEstimate:
    """An estimate from the first clients of the first round that trains, else from that round.

    Args:
        cores: of this machine for clients; 0 where clients are elsewhere.
        workers: clients that are trained at the same time; None where that is not known.
        memory: bytes that the run's processes have taken so far, if they are here.
    """

    def __init__(
        self,
        config: Config,
        *,
        cores: int,
        workers: int | None,
        memory: Callable[[], int] | None,
        message: Callable[[str], None],
    ) -> None:
        self._config = config
        self._cores, self._workers, self._memory = cores, workers, memory
        self._message = message
        self._said = False
        self._clients: int | None = None
        self._images = 0  # that the round trains on
        self._done = self._seen = self._first = 0
        self._began = self._started = 0.0
        self._rounds = self._evaluations = 0
        self.evaluation = 0.0  # seconds of one evaluation, as far as there was one

    def round_started(self, rounds: int, evaluations: int, images: Collection[int] | None) -> None:
        """A round that trains begins.

        Args:
            rounds: how many are left, this one included.
            evaluations: how many are left.
            images: of each client that trains in it; None: not all at once, or not known.
        """
        self._rounds, self._evaluations = rounds, evaluations
        self._clients = None if images is None else len(images)
        self._images = sum(images or ())
        self._began, self._done, self._seen = time.monotonic(), 0, 0

    def client_done(self, images: int) -> None:
        """A client has answered; the workers' second clients show the pace, not the first.

        The first clients' times include the workers' start. Clients with more images take longer.
        """
        self._done += 1
        self._seen += images
        spent = time.monotonic() - self._began
        if self._clients is None or self._workers is None or self._done >= self._clients:
            return
        if self._done == self._workers:
            self._started, self._first = spent, self._seen
        later = self._done - self._workers
        if later >= self._workers and spent >= SOON:
            self._say((spent - self._started) / (self._seen - self._first) * self._images)
        elif later >= 0 and spent >= SLOW:
            self._say(spent / self._seen * self._images)

    def round_ended(self, seconds: float) -> None:
        """The round is over, and took `seconds`."""
        self._say(seconds)

    def _say(self, seconds: float) -> None:
        if self._said:
            return
        self._said = True
        total = seconds * self._rounds + self.evaluation * self._evaluations
        if total < SHORTEST:
            return
        rounds, verb = counted(self._rounds, "round"), "takes" if self._rounds == 1 else "take"
        memory = f" and {self._memory() / 1e9:.1f} GB of memory" if self._memory else ""
        advice = "; ".join(self._advice(total)) if total >= LONG else ""
        self._message(
            f"at this pace {rounds} {verb} about {duration(total)}{memory}"
            + (f" ({advice})" if advice else "")
        )

    def _advice(self, total: float) -> Iterator[str]:
        """Advice on what would take less time than `total` seconds."""
        config = self._config
        limit = config.evaluation.limit or math.inf
        if self.evaluation * self._evaluations > total / 2 and limit > 1000:
            yield "evaluation.limit=1000 would take less for evaluations, more than half of it"
        if _has_large_images(config):
            yield _fewer_pixels(config)
        several = self._cores >= 2 * config.training.threads and self._clients != 1
        if self._workers == 1 and several and config.engine.name != "ray":
            yield f"engine=ray would use {self._cores} cores"
