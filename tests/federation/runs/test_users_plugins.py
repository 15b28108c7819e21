"""A slip in a plug-in of a user's package ends a run with one line that says where it is."""

import pytest

from orchestra_flwr.cli import main
from orchestra_flwr.config import ConfigError, load_config, without_unread

AGGREGATION = """
    from orchestra_flwr.federation.aggregations import RobustAggregation

    class Mine(RobustAggregation):
        def combine(self, states, weights):
            return self.nothing
"""
RULE = """
    from orchestra_flwr.federation.aggregations import RobustAggregation

    class Mine(RobustAggregation):
        def combine(self, states, weights):
            return RETURNED
"""
STREAM = """
    from orchestra_flwr.federation.aggregations import Aggregation

    class Mine(Aggregation):
        def add(self, values, weight):
            pass

        def result(self):
            pass
"""
OPTIMIZER = """
    from orchestra_flwr.federation.server_optimizers import ElementwiseOptimizer

    class Mine(ElementwiseOptimizer):
        def initial_moments(self):
            return MOMENTS

        def change(self, update, moments):
            return RETURNED
"""
ATTACK = """
    from orchestra_flwr.federation.attacks import Attack

    class Mine(Attack):
        def sent(self, received, trained, generator):
            return RETURNED

        def poisoned(self, images):
            return POISONED
"""
MERGING = """
    from orchestra_flwr.merging import ClientState, Merging

    class Mine(Merging):
        def merge(self, learner, state):
            pass

        def keep(self, learner):
            return KEPT

        def metrics(self):
            return MEASURED
"""
SHIFT = """
    from orchestra_flwr.data import Shift

    class Mine(Shift):
        def apply(self, images, indices, client, seed):
            return RETURNED
"""
SCHEDULE = """
    from orchestra_flwr.training.schedules import Schedule

    class Mine(Schedule):
        def factor(self, progress):
            return RETURNED
"""
ENGINE = """
    from orchestra_flwr.federation.engines.inline import InlineEngine

    class Mine(InlineEngine):
        def run(self, serve, clients):
            CALLED
"""
EXCHANGE = """
    from orchestra_flwr.federation.exchanges import Exchange, Stage, Task

    class Mine(Exchange):
        def models(self, clients):
            return MODELS

        def stages(self, round_, cohort):
            YIELDED
"""
SENT = """
    from orchestra_flwr.federation.aggregations import RobustAggregation

    class Mine(RobustAggregation):
        def combine(self, states, weights):
            centre = self.sent
            centre += 1
            return centre
"""
CLUSTERING = """
    import torch
    from orchestra_flwr.clustering.clusterings import LOCAL_CENTROIDS, Clustering
    from orchestra_flwr.privacy.release import Contribution, Release

    class Mine(Clustering):
        @classmethod
        def release(cls, config):
            shape = 2, config.model.projector_dim
            return Release({LOCAL_CENTROIDS: shape}, label="means", min_images=2, first_round=0)

        def end_round(self, images, seed):
            rows = torch.ones(2, self.shape[1])
            return RETURNED
"""
PARTITION = """
    from orchestra_flwr.data import Partition

    class Mine(Partition):
        def split(self, labels, count, clients, seed):
            pass
"""
SILENT_CLUSTERING = """
    from orchestra_flwr.clustering.clusterings.sinkhorn import Sinkhorn

    class Mine(Sinkhorn):
        @classmethod
        def release(cls, config):
            pass
"""
SOLVER = """
    from orchestra_flwr.clustering.solvers import Solver

    class Mine(Solver):
        def solve(self, points, previous, generator):
            return RETURNED
"""
ADAPTATION = """
    from orchestra_flwr.models.adaptations import Adaptation

    class Mine(Adaptation):
        def trained(self, backbone):
            return RETURNED
"""
SOURCE = """
    import torch
    from orchestra_flwr.data import Dataset, ImageSet, Source

    class Mine(Source):
        channels = 1

        def load(self):
            size = self.data.image_size
            images = torch.zeros(40, 1, size, size, dtype=torch.uint8)
            images = ImageSet(images, torch.arange(40) % 3, ("a", "b"))
            return RETURNED
"""
CLOCK = """
    from orchestra_flwr.federation.clocks import Clock, Device

    class Mine(Clock):
        def devices(self, clients, seed):
            return {client: RETURNED for client in clients[1:]}
"""
METHOD = """
    import torch
    from orchestra_flwr.methods import Contributes, Role
    from orchestra_flwr.methods.simclr import SimCLR
    from orchestra_flwr.privacy.release import Contribution, Release

    RELEASE = Release({"rows": (1, 3)}, label="rows")

    class Mine(Contributes, SimCLR):
        roles = {"state": Role.SERVER}

        def __init__(self, config, channels):
            super().__init__(config, channels)
            self.register_buffer("state", torch.zeros(3))

        @classmethod
        def release(cls, config):
            return RELEASED

        def end_round(self, images, seed):
            return Contribution({NAME: torch.ones(1, 3)})

        def update_server_state(self, contributions, generator):
            self.state.fill_(VALUE)
            return RETURNED
"""


def stages(yielded, models="('m',)"):
    return EXCHANGE.replace("MODELS", models).replace("YIELDED", yielded)


def rule(returned):
    return RULE.replace("RETURNED", returned)


def optimizer(returned, moments="{}"):
    return OPTIMIZER.replace("RETURNED", returned).replace("MOMENTS", moments)


def attack(returned="trained", poisoned="images"):
    return ATTACK.replace("RETURNED", returned).replace("POISONED", poisoned)


def merging(kept="ClientState()", measured="{}"):
    return MERGING.replace("KEPT", kept).replace("MEASURED", measured)


def clustering(returned):
    return CLUSTERING.replace("RETURNED", returned)


def method(name="'rows'", value="1.0", returned="{}", released="RELEASE"):
    text = METHOD.replace("NAME", name).replace("VALUE", value).replace("RETURNED", returned)
    return text.replace("RELEASED", released)


SLIPS = {
    "AttributeError: 'Mine' object has no attribute 'nothing' (mine.py:6)":
        ("aggregation", AGGREGATION),
    # The server's copy of what clients were sent was changed.
    "ValueError: output array is read-only (mine.py:7)":
        ("aggregation", SENT),
    # The learning rate was blamed, or a client, or nobody.
    "aggregation=mine: Mine must return a state, as clients send it (self.sent + update): of "
    "states with a mean of 1.5 it made ":
        ("aggregation", rule("states[0] - self.sent")),
    "(self.sent + update): of states with a mean of 1.5 it made 12":
        ("aggregation", rule("sum(w * s for w, s in zip(weights, states))")),
    "(self.sent + update): of states with a mean of 1.5 it made nan":
        ("aggregation", rule("states[0] * float('nan')")),
    # It was found out after a round.
    "aggregation: Mine.combine must return an array of 64 values, and returned a ndarray, float32 "
    "(63,)":
        ("aggregation", rule("states[0][1:]")),
    "aggregation: Mine.combine must return an array of 64 values, and returned None":
        ("aggregation", rule("None")),
    "aggregation=mine: Mine.result must return a ndarray, float32 (64,), and returned None":
        ("aggregation", STREAM),
    "round 1: aggregation=mine: returned values that are not finite":
        ("aggregation", rule("states[0] / (self.sent.min() > 0)")),
    "Mine.change must return (72,) values, those of the update, and returned None":
        ("server_optimizer", optimizer("None")),
    "Mine.change must return (72,) values, those of the update, and returned (3,)":
        ("server_optimizer", optimizer("update[:3]")),
    "KeyError: 'm' (mine.py:9)":
        ("server_optimizer", optimizer("moments['m']")),
    "Mine.initial_moments must return a dictionary of numbers, and returned None":
        ("server_optimizer", optimizer("update", moments="None")),
    "Mine.initial_moments must return a dictionary of numbers, and returned {'first': None}":
        ("server_optimizer", optimizer("update", moments="{'first': None}")),
    # Attackers were left out of each round, or sent nothing that anybody asked for.
    "attack=mine: Mine.sent must return a ndarray, float32 (11032,), and returned None":
        ("attack", attack("None")),
    "attack=mine: Mine.sent must return a ndarray, float32 (11032,), and returned a ndarray, "
    "float32 (11031,)":
        ("attack", attack("received[1:]")),
    "attack=mine: Mine.sent must return a ndarray, float32 (11032,), and returned a ndarray, "
    "float64 (11032,)":
        ("attack", attack("received.astype(float)")),
    "attack=mine: KeyError: 'none' (mine.py:6)":
        ("attack", attack("{}['none']")),
    "attack=mine: ValueError: assignment destination is read-only (mine.py:6)":
        ("attack", attack("received.__setitem__(0, 1)")),
    "attack=mine: Mine.poisoned must return a Tensor, uint8 (4, 1, 8, 8), and returned a Tensor, "
    "float32 (4, 1, 8, 8)":
        ("attack", attack(poisoned="images.float()")),
    # Messages named lines and attributes of this package.
    "merging=mine: Mine.keep must return a ClientState(tensors, values) of dictionaries, and "
    "returned None":
        ("merging", merging(kept="None")),
    "merging=mine: Mine.keep must return a ClientState(tensors, values) of dictionaries, and "
    "returned ClientState(tensors={'a': 1}, values={})":
        ("merging", merging(kept="ClientState({'a': 1})")),
    "merging=mine: Mine.metrics must return a dictionary of numbers, and returned {'share': 'a'}":
        ("merging", merging(measured="{'share': 'a'}")),
    "merging=mine: Mine.metrics must return a dictionary of numbers, and returned None":
        ("merging", merging(measured="None")),
    "shift=mine: Mine.apply must return a Tensor, uint8 (4, 1, 8, 8), on cpu, and returned None":
        ("shift", SHIFT.replace("RETURNED", "None")),
    "shift=mine: KeyError: '0' (mine.py:6)":
        ("shift", SHIFT.replace("RETURNED", "{}[client]")),
    "schedule=mine: Mine.factor must return a number, at least 0, and returned None":
        ("schedule", SCHEDULE.replace("RETURNED", "None")),
    "schedule=mine: Mine.factor must return a number, at least 0, and returned '1'":
        ("schedule", SCHEDULE.replace("RETURNED", "'1'")),
    "schedule=mine: Mine.factor must return a number, at least 0, and returned nan":
        ("schedule", SCHEDULE.replace("RETURNED", "float('nan')")),
    "schedule=mine: Mine.factor must return a number, at least 0, and returned -1":
        ("schedule", SCHEDULE.replace("RETURNED", "-1")),
    "schedule=mine: ZeroDivisionError: division by zero (mine.py:6)":
        ("schedule", SCHEDULE.replace("RETURNED", "1 / progress.epoch")),
    "engine=mine: Mine.run must return what serve returned, and returned None":
        ("engine", ENGINE.replace("CALLED", "super().run(serve, clients)")),
    "exchange=mine: stages must yield Stage objects, and returned None":
        ("exchange", stages("pass")),
    "exchange: no model is called 'x': ['m']":
        ("exchange", stages("yield Stage(tuple(Task(c, ('x',)) for c in cohort))")),
    "exchange=mine: stages has a task for x, which is not in the round's cohort":
        ("exchange", stages("yield Stage((Task('x', ('m',)),))")),
    "exchange=mine: models must have different names without '/', one at least, not ()":
        ("exchange", stages("yield Stage(())", models="()")),
    "exchange=mine: models must have different names without '/', one at least, not None":
        ("exchange", stages("yield Stage(())", models="None")),
    # They were taken for the models "i", "m" and "n".
    "exchange=mine: models must have different names without '/', one at least, not 'min'":
        ("exchange", stages("yield Stage(())", models="'min'")),
    # Rounds were reported, with scores, and nothing was trained.
    "exchange=mine: stages must give clients tasks, or copy or mix models, and did neither in":
        ("exchange", stages("yield Stage(())")),
    "exchange=mine: stages must give clients tasks, or copy or mix models, and did neither":
        ("exchange", stages("return iter(())")),
    "exchange=mine: stages must yield Stage objects, and not 3":
        ("exchange", stages("yield 3")),
    # A single row was copied to all centroids.
    "clustering.solver=mine: Mine.solve must return a Tensor of centroids (4, 16), and returned a "
    "Tensor, float32 (1, 16)":
        ("clustering.solver.name", SOLVER.replace("RETURNED", "points[:1]")),
    "clustering.solver=mine: Mine.solve must return a Tensor of centroids (4, 16), and returned a "
    "ndarray, float32 (4, 16)":
        ("clustering.solver.name", SOLVER.replace("RETURNED", "points[:4].numpy()")),
    "clustering.solver=mine: Mine.solve must return unit vectors, and returned lengths from 3 to 3":
        ("clustering.solver.name", SOLVER.replace("RETURNED", "3 * points[:4]")),
    "clustering.solver=mine: Mine.solve must return unit vectors, and returned lengths from nan to":
        ("clustering.solver.name", SOLVER.replace("RETURNED", "float('nan') * points[:4]")),
    "clustering.solver=mine: Mine.solve must return a Tensor of centroids (4, 16), and returned "
    "None":
        ("clustering.solver.name", SOLVER.replace("RETURNED", "None")),
    # Nothing of the backbone was trained.
    "adaptation: Mine.trained must name parameters and buffers of the backbone, and named 'layer'":
        ("adaptation", ADAPTATION.replace("RETURNED", "{'layer'}")),
    "adaptation: Mine.trained must name parameters and buffers of the backbone, and named None":
        ("adaptation", ADAPTATION.replace("RETURNED", "None")),
    "data=mine: Mine.load must return a Dataset, and returned None":
        ("data", SOURCE.replace("% 3", "% 2").replace("RETURNED", "None")),
    "data=mine: Mine must give labels from -1 to 1, positions in classes":
        ("data", SOURCE.replace("RETURNED", "Dataset(self.data.name, images)")),
    "data=mine: Mine must give training images, and gave none":
        ("data", SOURCE.replace("% 3", "% 2").replace(
            "RETURNED", "Dataset(self.data.name, images.select(torch.arange(0)))")),
    # Time was that of this machine.
    "clock=mine: Mine.devices must return a dictionary with a Device for each client, and returned "
    "None":
        ("clock", CLOCK.replace("return {client: RETURNED for client in clients[1:]}", "pass")),
    "clock=mine: Mine.devices has no Device for client 0":
        ("clock", CLOCK.replace("RETURNED", "Device(1, 1, 1)")),
    "ValueError: rates of a device must be above 0: Device(images_per_second=0":
        ("clock", CLOCK.replace("RETURNED", "Device(0, 1, 1)")),
    "partition=mine: Mine.split must give the images of 4 clients, not of None":
        ("partition", PARTITION),
    "end_round must return a Contribution, and returned a dict":
        ("clustering", clustering("{LOCAL_CENTROIDS: rows}")),
    "end_round: local_centroids must be a tensor, and is a ndarray":
        ("clustering", clustering("Contribution({LOCAL_CENTROIDS: rows.numpy()}, 2)")),
    "end_round: local_centroids of shape (4, 16), and release(config) announces (up to 2, 16)":
        ("clustering", clustering("Contribution({LOCAL_CENTROIDS: rows.repeat(2, 1)}, 2)")),
    # Nobody saw how few images a row was of.
    "end_round must say smallest_group, since release(config) has min_images=2":
        ("clustering", clustering("Contribution({LOCAL_CENTROIDS: rows})")),
    # They left the client, and the server dropped them.
    "end_round made rows of 1 images, and release(config) has min_images=2":
        ("clustering", clustering("Contribution({LOCAL_CENTROIDS: rows}, 1)")),
    "end_round contributed row, and release(config) announces rows":
        ("method", method(name="'row'")),
    "method=mine: update_server_state must return a dictionary of what is recorded, {} for "
    "nothing, and returned None":
        ("method", method(returned="None")),
    "round 1: method=mine: update_server_state left values in state that are not finite":
        ("method", method(value="torch.nan")),
}  # fmt: skip


@pytest.mark.parametrize("line", SLIPS)
def test_a_slip_is_one_line(tiny_overrides, tmp_path, user_package, capsys, line):
    kind, text = SLIPS[line]
    folder = {"clustering.solver.name": "solvers", "data": "sources", "merging": "merging"}
    user_package({f"{folder.get(kind, kind + 's')}/mine.py": text})
    orchestra = ["method=orchestra"]
    method = {"method": [], "clustering": orchestra, "clustering.solver.name": orchestra}
    chosen = [*method.get(kind, ["method=simclr"]), f"{kind}=mine"]
    overrides = [*tiny_overrides, "plugins=[my_package]", *chosen, "federation.rounds=1"]
    overrides = without_unread(load_config(overrides), overrides)
    code = main([*overrides, f"run_dir={tmp_path / 'run'}"])
    errors = [
        printed for printed in capsys.readouterr().err.splitlines() if printed.startswith("error: ")
    ]
    assert code in (1, 2) and len(errors) == 1 and line in errors[0]


def test_what_is_no_release_is_refused(user_package):
    text = method(released="3")
    user_package({"clusterings/mine.py": SILENT_CLUSTERING, "methods/mine.py": text})
    with pytest.raises(
        ConfigError,
        match=r"clustering=mine: Mine\.release must return a Release, and returned None",
    ):  # its clients would contribute nothing
        load_config(["plugins=[my_package]", "method=orchestra", "clustering=mine"])
    with pytest.raises(
        ConfigError,
        match=r"method=mine: Mine\.release must return a Release or None, and returned 3",
    ):
        load_config(["plugins=[my_package]", "method=mine"])
