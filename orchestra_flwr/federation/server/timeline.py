"""The virtual time of a simulation: who is free, when replies come, and when a round ends."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from flwr.app import Message
from flwr.serverapp import Grid

from orchestra_flwr.config import Config
from orchestra_flwr.data import local_epochs
from orchestra_flwr.federation.clocks import Device
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.exchanges import Task
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.fingerprints import fingerprint_of
from orchestra_flwr.flower.streaming_grid import Arrival
from orchestra_flwr.methods import Role, release_of
from orchestra_flwr.seeding import derive


@dataclass
class Timeline:
    """Virtual seconds since the run began, at midnight. The server's own work takes none.

    A reply comes when the model has been received, all images have been trained on and the answer
    has been sent, each at the device's speed. A client that is away goes on later; a late one works
    on, and cannot be asked before it has finished.
    """

    resumable = True

    config: Config
    devices: Mapping[str, Device]  # of the clients
    images: Mapping[str, int]  # of each client
    schemas: Schemas  # of what travels

    def __post_init__(self) -> None:
        self.now = 0.0  # seconds
        self._down = _bytes(self.schemas, Role.SHARED.value) + 4 * self.schemas.server.size
        self._up = _bytes(self.schemas, self.schemas.reply)
        release = release_of(self.config)
        rows = release.rows.values() if release else ()
        self._rows = sum(4 * most * width for most, width in rows)
        self._busy: dict[str, float] = {}  # until when clients are at work, perhaps in vain
        self._fingerprint = fingerprint_of(repr(sorted(self.devices.items())))

    @classmethod
    def of(cls, config: Config, images: Mapping[str, int], schemas: Schemas) -> Self | None:
        """The virtual time of a simulation with a clock; None without one."""
        devices = config.clock.build().devices(tuple(images), config.seed)
        return cls(config, devices, images, schemas) if devices else None

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"now": self.now, "busy": self._busy, "devices": self._fingerprint}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Takes back what :meth:`state` returned.

        Raises:
            FederationError: the devices are others than those that the run began with.
        """
        if state and state["devices"] != self._fingerprint:
            raise FederationError(
                f"clock.devices={self.config.clock.settings.devices}: is another table than the "
                "run began with"
            )
        self.now = state.get("now", 0.0)
        self._busy = dict(state.get("busy", {}))

    def free(self, clients: Collection[str], *, wait: bool = True) -> list[str]:
        """The clients, at least one, that are there and not at work; time passes until one is.

        Args:
            wait: False: no time passes, and there may be none.
        """
        times = {client: self._free_from(client) for client in clients}
        if wait:
            self.now = max(self.now, min(times.values()))
        return [client for client in clients if times[client] <= self.now]

    def _free_from(self, client: str) -> float:
        return self.devices[client].back(max(self.now, self._busy.get(client, 0.0)))

    def end(self, client: str, *, trains: bool, models: int = 1) -> float:
        """When the reply of a client that is asked now comes; it finishes other work first.

        Args:
            models: that it is sent.
            trains: whether it trains, or looks at each image once and sends no state.
        """
        device = self.devices[client]
        images = self.images[client]
        images *= local_epochs(self.config.training, images) if trains else 1
        seconds = models * self._down / device.down + images / device.images_per_second
        seconds += (self._rows + self._up * trains) / device.up
        return device.end(max(self.now, self._busy.get(client, 0.0)), seconds)

    def busy(self) -> int:
        """How many clients are there, but at work on what is no longer awaited."""
        working = [client for client, end in self._busy.items() if end > self.now]
        return sum(self.devices[client].back(self.now) <= self.now for client in working)

    def begin(self, clients: Sequence[str]) -> list[float]:
        """When the replies of clients that begin to train now come."""
        return [self.end(client, trains=True) for client in clients]

    def next(self, at_work: Mapping[str, float]) -> tuple[str, bool]:
        """Lets time pass until the first of these has answered; none fails.

        Args:
            at_work: when their replies come.
        """
        client = min(at_work, key=lambda name: at_work[name])
        self.now = max(self.now, at_work[client])
        return client, True

    def receive_first(
        self,
        grid: Grid,
        messages: Iterable[Message],
        tasks: Sequence[Task],
        needed: Callable[[], int],
        limit: float,
        *,
        trains: bool,
    ) -> Iterator[Arrival]:
        """Yields the replies that come first until there are enough; moves the time on accordingly.

        The work of late clients is not computed: nobody would see the result.

        Args:
            messages: of a stage.
            tasks: those of the messages, in the same order.
            needed: returns how many more good replies are needed; called again after each wave.
            limit: seconds after which no reply is waited for.
        """
        began = self.now
        ends = [self.end(t.client, trains=trains, models=len(t.models)) for t in tasks]
        for task, end in zip(tasks, ends, strict=True):
            self._busy[task.client] = end
        in_time = [place for place, end in enumerate(ends) if end <= began + limit]
        # Ties are broken anew each time: otherwise some clients would never count.
        ties = [derive(self.config.seed, "at once", task.client, repr(began)) for task in tasks]
        in_time.sort(key=lambda place: (ends[place], ties[place]))
        made, waiting = enumerate(messages), dict[int, Message]()

        def message_at(place: int) -> Message:
            while place not in waiting:  # all are made in their order, as they are counted
                waiting.update([next(made)])
            return waiting.pop(place)

        while in_time and (count := needed()) > 0:
            wave, in_time = sorted(in_time[:count]), in_time[count:]
            replies = grid.send_and_receive(map(message_at, wave))
            for place, reply in zip(wave, replies, strict=True):
                yield Arrival(place, reply, ends[place] - began)
            self.now = max(self.now, *(ends[place] for place in wave))
        for _ in made:  # late clients are sent messages as well, which are counted as they are made
            pass
        if needed() > 0:  # in vain: until the limit, or until nobody is at work any more
            self.now = max(self.now, min(began + limit, max(ends, default=began)))
        self._busy = {client: end for client, end in self._busy.items() if end > self.now}


def _bytes(schemas: Schemas, name: str) -> int:
    """Bytes of a message's arrays with the shared state."""
    return sum(dtype.itemsize * size for dtype, size in schemas.codec.form(name).values())
