"""Whole federations in this process, and a method so small that its runs can be worked by hand."""

from types import SimpleNamespace

import pytest
from flwr.app import Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from safetensors.torch import load_file

from orchestra_flwr.federation.client.client_app import app as client_app
from orchestra_flwr.federation.engines.inline import InlineGrid
from orchestra_flwr.federation.messages.fields import CONFIG
from orchestra_flwr.federation.population import load_population
from orchestra_flwr.federation.server.evaluator import Evaluator
from orchestra_flwr.federation.server.loop import FederationRun
from orchestra_flwr.federation.server.members import SimulatedMembers
from orchestra_flwr.flower.streaming_grid import StreamingGrid
from orchestra_flwr.reporting import RunFolder, make_progress
from orchestra_flwr.reporting.kept_checkpoints import LATEST

SHADES = """
    import torch
    from orchestra_flwr.data import Dataset, ImageSet, Source

    BRIGHTNESS = {"a": 0, "b": 51, "c": 102, "d": 255}
    SIZES = {"a": 4, "b": 6, "c": 8, "d": 10}

    class Shades(Source):
        "Images of one brightness each; with partition=by_class a client holds all of one."
        channels = 1
        classes = 4

        @classmethod
        def label(cls, settings):
            return "shades"

        def load(self):
            values = [BRIGHTNESS[name] for name in SIZES for _ in range(SIZES[name])]
            labels = [k for k, name in enumerate(SIZES) for _ in range(SIZES[name])]
            images = torch.tensor(values, dtype=torch.uint8)[:, None, None, None]
            images = images.expand(-1, 1, 8, 8).contiguous()
            return Dataset("shades", ImageSet(images, torch.tensor(labels), tuple(SIZES)))
"""

LINEAR = """
    import torch
    from orchestra_flwr.data import Recipe
    from orchestra_flwr.methods import Method, Role, StartsRounds, Step
    from orchestra_flwr.methods.roles import role_of
    from orchestra_flwr.models import build_backbone

    class Linear(StartsRounds, Method):
        "A step with lr moves all weights from w to w + lr * (brightness - w)."

        def __init__(self, config, channels):
            super().__init__(config, channels)
            self.backbone = build_backbone(config.model, channels).requires_grad_(False)
            self.weights = torch.nn.Parameter(torch.zeros(2, 3))
            self.bias = torch.nn.Parameter(torch.zeros(2))

        def role(self, name):
            roles = {"backbone": Role.TRANSIENT, "weights": Role.SHARED, "bias": Role.SHARED}
            return role_of(name, roles)

        def recipes(self):
            return (Recipe(),)

        def backbones(self):
            return {"online": self.backbone}

        def start_round(self, received):
            self.brightness = received.images.float().mean() / 255

        def loss(self, batch):
            distances = [(w - self.brightness).square().sum() for w in (self.weights, self.bias)]
            return Step({"distance": sum(distances) / 2})
"""

TOY = (
    "plugins=[toys]",
    "data=digits",
    "data.name=shades",
    "data.train_limit=null",
    "data.test_limit=null",
    "data.image_size=8",
    "partition=by_class",
    "method=simclr",
    "method.name=linear",
    "training.lr=0.5",
    "optimizer.momentum=0",
    "optimizer.weight_decay=0",
    "evaluation.every=100",
)


class ScrambledGrid(Grid):
    """Clients work in another order than they were asked, each when somebody looks for a reply."""

    def __init__(self, app):
        self._inline = InlineGrid(app)
        self._sent, self._replies, self.order = {}, {}, []

    def get_node_ids(self):
        return self._inline.get_node_ids()

    def push_messages(self, messages):
        for message in messages:
            key = str(len(self._sent))
            self._sent[key] = message
            yield key

    def pull_messages(self, ids):
        waiting = [key for key in self._sent if key not in self._replies]
        for key in waiting[1::2][::-1] + waiting[::2]:
            self.order.append(key)
            (self._replies[key],) = self._inline.send_and_receive([self._sent[key]])
        return [self._replies[key] for key in ids]

    run = property(lambda self: None)
    set_run = create_message = send_and_receive = lambda self, *args, **kwargs: None


def scrambled(app):
    return StreamingGrid(ScrambledGrid(app), None)


@pytest.fixture
def federate(tmp_path):
    """Runs a whole federation in this process; returns its folder, and what can be read in it."""

    def run(
        config, *, app=client_app, folder=None, grid=InlineGrid, evaluate=True,
        members=SimulatedMembers, delivery=lambda grid, folder: None, shown="off",
    ):  # fmt: skip
        folder = folder or RunFolder.create(config, tmp_path / "outputs")
        population = load_population(config)
        made = grid(app)
        with make_progress(shown, config.federation.rounds) as progress:
            summary = FederationRun(
                made,
                config,
                members(made, population.parts),
                evaluator=Evaluator(config, population.dataset if evaluate else None),
                folder=folder,
                progress=progress,
                delivery=delivery(made, folder),
            ).run()
        state = load_file(folder.checkpoint / LATEST)
        records = folder.read_metrics()
        return SimpleNamespace(summary=summary, folder=folder, records=records, state=state)

    return run


@pytest.fixture
def scrambled_grid():
    return scrambled


@pytest.fixture
def watched():
    """The real ClientApp; `look(client, round, sent, reply)` sees what travels and may change it.

    `sent` is a copy of the message's records by name; what `look` returns takes the reply's place.
    """

    def make(look):
        app = ClientApp()

        @app.train()
        def train(message, context):
            task, sent = message.content[CONFIG], dict(message.content.items())
            client, round_ = task["client"], task["round"]
            reply = client_app(message, context)
            changed = look(client, round_, sent, reply)
            return changed if isinstance(changed, Message) else reply

        @app.query()
        def query(message, context):
            return client_app(message, context)

        return app

    return make


@pytest.fixture
def toy(tiny, tmp_path, user_package):
    """Makes configurations of the linear method on clients a (dark) to d (bright).

    `toy.package(files)` adds plug-ins to their package.
    """
    user_package({"sources/shades.py": SHADES, "methods/linear.py": LINEAR}, package="toys")

    def make(*overrides, run="run"):
        return tiny(*TOY, f"run_dir={tmp_path / run}", *overrides)

    make.package = lambda files: user_package(files, package="toys")
    return make
