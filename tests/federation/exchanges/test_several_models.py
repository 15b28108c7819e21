"""Two models on the server, of which each client chooses the one that it trains."""

import sys

import numpy as np
import pytest
import torch

from orchestra_flwr.federation.client.numpy_client import OrchestraClient
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG, MODEL, MODELS
from orchestra_flwr.flower.arrays import payload_bytes
from orchestra_flwr.reporting import RunFolder

HALVES = """
    import torch
    from pydantic import Field
    from orchestra_flwr.config import Section
    from orchestra_flwr.federation.exchanges import Exchange, Stage, Task

    class Halves(Exchange):
        "Clients with dark images train one model, those with bright images the other."

        class Settings(Section):
            limit: float = Field(0.5, ge=0)

        def models(self, clients):
            return ("dark", "bright")

        def stages(self, round_, cohort):
            yield Stage(tuple(Task(client, ("dark", "bright")) for client in cohort))

        def choose(self, offer):
            bright = offer.images.float().mean() / 255 > self.settings.limit
            return offer.names[int(bright)]
"""

MOVING = """
    import torch
    from orchestra_flwr.federation.exchanges import Exchange, Stage, Task

    class Moving(Exchange):
        "A client trains x and y in turn; in every third round it is sent its last one only."
        remembers = True

        def __init__(self, settings):
            super().__init__(settings)
            self.last = {}

        def models(self, clients):
            return ("x", "y")

        def stages(self, round_, cohort):
            both = ("x", "y")
            yield Stage(tuple(
                Task(client, (self.last[client],) if round_ % 3 == 0 and self.last else both)
                for client in cohort
            ))

        def result(self, result):
            assert result.state.dtype == "float32" and result.before().shape == result.state.shape
            self.last[result.client] = result.model

        def state(self):
            return {"last": self.last}

        def load_state(self, state):
            self.last = dict(state["last"])

        def choose(self, offer):
            turns = int(offer.kept["turns"]) if offer.kept else 0
            bright = int(offer.images.float().mean() / 255 > 0.5)
            self.turns = turns + 1
            return offer.names[(turns + bright) % 2]

        def keep(self, learner):
            return {"turns": torch.tensor(float(getattr(self, "turns", 0)))}
"""

CHOSEN_BY_LOSS = """
    from orchestra_flwr.methods import Received
    from orchestra_flwr.training.step import BatchMaker
    from orchestra_flwr.federation.exchanges import Exchange, Stage, Task

    class Nearest(Exchange):
        "A client trains the model with the lowest loss on its images."

        def models(self, clients):
            return ("first", "second", "third")

        def stages(self, round_, cohort):
            yield Stage(tuple(Task(client, self.models(cohort)) for client in cohort))

        def choose(self, offer):
            offer.learner.start_round(Received("", None, 0, offer.images))
            losses = {}
            for name in offer.names:
                offer.load(name)
                batches = BatchMaker(offer.learner.method, offer.images, None,
                                     offer.config, offer.seed)
                parts, _ = offer.learner.loss(batches(range(4)))
                losses[name] = float(sum(parts.values()))
            return min(losses, key=losses.get)
"""

BRIGHTNESS = {"a": 0, "b": 0.2, "c": 0.4, "d": 1}
SIZES = {"a": 4, "b": 6, "c": 8, "d": 10}
TOLERANCE = {"float32": 1e-7, "float16": 1e-4, "int8": 5e-3}


@pytest.fixture
def halves(toy):
    toy.package({"exchanges/halves.py": HALVES})
    return lambda *overrides, **run: toy("exchange=star", "exchange.name=halves", *overrides, **run)


@pytest.fixture
def moving(toy):
    toy.package({"exchanges/moving.py": MOVING})
    return lambda *overrides, **run: toy("exchange=star", "exchange.name=moving", *overrides, **run)


def values(state):
    """Of each model in a checkpoint its value; all weights of the linear method are equal."""
    first = torch.cat([state["weights"].reshape(-1), state["bias"]])
    others = {
        name.split("/")[1]: tensor
        for name, tensor in state.items()
        if name.startswith("models/") and name.endswith("/shared")
    }
    models = {"": first, **others}
    for tensor in models.values():
        torch.testing.assert_close(tensor, tensor[:1].expand_as(tensor), atol=2e-3, rtol=0)
    return {name: float(tensor[0]) for name, tensor in models.items()}


def same_bits(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def mean(state, clients):
    """One round of training by these clients from a value, averaged by their images."""
    trained = [(state + BRIGHTNESS[c]) / 2 for c in clients]
    return np.average(trained, weights=[SIZES[c] for c in clients])


@pytest.mark.parametrize("wire", ["float32", "float16", "int8"])
def test_each_model_is_the_mean_of_those_that_chose_it(halves, federate, watched, wire):
    seen = []

    def look(client, round_, sent, reply):
        arrays = sent[ARRAYS]
        seen.append((client, list(sent[CONFIG][MODELS]), reply.content[CONFIG][MODEL]))
        assert {name.partition("/")[0] for name in arrays} == {"dark", "bright"}
        assert not any("/" in name for name in reply.content[ARRAYS])

    config = halves("federation.rounds=2", f"federation.wire={wire}")
    run = federate(config, app=watched(look), evaluate=False)
    dark = mean(mean(0, "abc"), "abc")
    bright = mean(mean(0, "d"), "d")
    assert values(run.state) == pytest.approx({"": dark, "bright": bright}, abs=TOLERANCE[wire])
    chosen = {client: model for client, _, model in seen}
    assert chosen == {"a": "dark", "b": "dark", "c": "dark", "d": "bright"}
    assert all(models == ["dark", "bright"] for _, models, _ in seen)


def test_a_model_that_nobody_chose_stays_as_it_is(halves, federate):
    run = federate(halves("federation.rounds=2", "exchange.limit=2"), evaluate=False)
    assert values(run.state) == pytest.approx({"": mean(mean(0, "abcd"), "abcd"), "bright": 0})
    assert not run.state["models/bright/shared"].any()


def test_its_optimizer_makes_no_step_either(halves, federate):
    config = halves("federation.rounds=2", "exchange.limit=2", "server_optimizer=adam")
    state = federate(config, evaluate=False).state
    steps = {name: int(state[f"server_optimizer/{name}/steps"]) for name in ("dark", "bright")}
    assert steps == {"dark": 2, "bright": 0}


def test_all_models_down_and_one_up_are_counted(halves, federate, watched):
    down, up = [], []

    def look(client, round_, sent, reply):
        down.append(sum(len(array.data) for array in sent[ARRAYS].values()))
        up.append(payload_bytes(reply.content))

    run = federate(halves("federation.rounds=1"), app=watched(look), evaluate=False)
    assert (run.summary["bytes_down"], run.summary["bytes_up"]) == (sum(down), sum(up))
    assert sum(down) == 2 * sum(up) == 4 * 2 * (8 * 4 + 128)  # 8 values, and numpy's header


def test_who_trained_what_it_was_not_sent_is_dropped(halves, federate, watched):
    def lie(client, round_, sent, reply):
        if client == "c":
            reply.content[CONFIG][MODEL] = "grey"
        if client == "d":
            del reply.content[CONFIG][MODEL]

    run = federate(halves("federation.rounds=1"), app=watched(lie), evaluate=False)
    dropped = {entry["client"]: entry["reason"] for entry in run.records[1]["clients"]["dropped"]}
    assert dropped == {
        "c": "it trained the model 'grey', and was sent dark, bright",
        "d": "it trained the model '', and was sent dark, bright",
    }
    assert values(run.state) == pytest.approx({"": mean(0, "ab"), "bright": 0})


def test_a_choice_of_what_was_not_offered_is_the_clients_failure(toy, federate):
    wrong = HALVES.replace("return offer.names[int(bright)]", "return 'grey'")
    toy.package({"exchanges/halves.py": wrong})
    config = toy("exchange=star", "exchange.name=halves")
    with pytest.raises(FederationError, match="clients a, b, c, d: .*'grey'"):
        federate(config, evaluate=False)


@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_the_order_in_which_clients_answer_changes_no_bit(halves, federate, scrambled_grid, wire):
    overrides = ("federation.rounds=2", f"federation.wire={wire}")
    straight = federate(halves(*overrides), evaluate=False)
    crossed = federate(halves(*overrides, run="x"), grid=scrambled_grid, evaluate=False)
    same_bits(straight.state, crossed.state)


def moved(rounds):
    """The exchange `moving` by hand: x, y and the last model of every client."""
    models, last = {"x": 0.0, "y": 0.0}, {}
    turns = dict.fromkeys("abcd", 0)
    for number in range(1, rounds + 1):
        chosen = {}
        for client in "abcd":
            if number % 3 == 0:
                chosen[client] = last[client]
            else:
                chosen[client] = "xy"[(turns[client] + (client == "d")) % 2]
        turns = {c: 0 if number % 3 == 0 else turns[c] + 1 for c in "abcd"}
        last |= chosen
        for name in "xy":
            who = [client for client, model in chosen.items() if model == name]
            models[name] = mean(models[name], who) if who else models[name]
    return models, last


def test_what_client_and_server_remember_decides(moving, federate):
    """A client keeps how often it chose in a row; the server which model it chose last."""
    run = federate(moving("federation.rounds=5"), evaluate=False)
    models, last = moved(5)
    assert values(run.state) == pytest.approx({"": models["x"], "y": models["y"]})
    assert set(last.values()) == {"x", "y"}
    files = sorted(p.name for p in (run.folder.clients / "a").rglob("*.safetensors"))
    assert files == [f"{round_}.safetensors" for round_ in (2, 3, 4, 5)]


@pytest.mark.parametrize(
    ("killed", "wire"),
    [
        (3, "int4"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (2, "int8"),
                (3, "int8"),
                (5, "int8"),
                (2, "float32"),
                (3, "float32"),
                (5, "float32"),
            )
        ),
    ],
)
def test_killed_and_resumed_it_ends_in_the_same_bits(moving, federate, watched, killed, wire):
    """The plug is pulled when client a has already kept its state of that round."""
    overrides = ("federation.rounds=5", f"federation.wire={wire}", "server_optimizer=momentum")
    whole = federate(moving(*overrides), evaluate=False)

    def pull_the_plug(client, round_, sent, reply):
        if (client, round_) == ("b", killed):
            raise KeyboardInterrupt

    torn = moving(*overrides, run="torn")
    folder = RunFolder.create(torn)
    with pytest.raises(KeyboardInterrupt):
        federate(torn, app=watched(pull_the_plug), folder=folder, evaluate=False)
    resumed = federate(torn, folder=RunFolder.resume(folder.path), evaluate=False)
    same_bits(whole.state, resumed.state)
    assert [r["loss"] for r in whole.records] == [r["loss"] for r in resumed.records]


def test_clients_may_choose_by_a_loss(toy, federate, watched):
    """All models begin alike and ties go to the first: only the second round could differ."""
    toy.package({"exchanges/nearest.py": CHOSEN_BY_LOSS})
    seen = []

    def look(client, round_, sent, reply):
        seen.append((round_, client, reply.content[CONFIG][MODEL]))

    config = toy("exchange=star", "exchange.name=nearest", "federation.rounds=2")
    run = federate(config, app=watched(look), evaluate=False)
    # 0.257 after the first round is farther from a (0) than 0 is, and from b (0.2) nearer.
    assert [model for round_, _, model in seen if round_ == 1] == ["first"] * 4
    assert [model for round_, _, model in seen if round_ == 2] == [
        "second", "first", "first", "first"
    ]  # fmt: skip
    first = mean(mean(0, "abcd"), "bcd")
    assert values(run.state) == pytest.approx({"": first, "second": 0, "third": 0})


def test_the_first_state_of_every_model_is_made_before_training(tiny, federate, tmp_path, toy):
    """Orchestra's round 0: all models begin alike, so what is contributed counts for each."""
    toy.package({"exchanges/halves.py": HALVES})
    config = tiny(
        "plugins=[toys]", "exchange=star", "exchange.name=halves", "exchange.limit=0.31",
        f"run_dir={tmp_path / 'o'}", "federation.rounds=1", "evaluation.every=100",
    )  # fmt: skip
    state = federate(config, evaluate=False).state
    size = 4 * 16  # G x D
    for centroids in (state["global_centroids"].reshape(-1), state["models/bright/server"]):
        assert centroids.shape == (size,)
        lengths = centroids.view(4, 16).norm(dim=1)
        torch.testing.assert_close(lengths, torch.ones(4))


def test_a_choice_sees_the_clients_own_norms_and_changes_nothing(tiny, federate, tmp_path, toy):
    """With fedbn: the learner that is offered has the norms that the client kept."""
    toy.package({
        "exchanges/peeking.py": """
            import torch
            from orchestra_flwr.federation.exchanges import Exchange, Stage, Task
            from orchestra_flwr.methods import Role

            seen = []

            class Peeking(Exchange):
                def models(self, clients):
                    return ("x", "y")

                def stages(self, round_, cohort):
                    yield Stage(tuple(Task(client, ("x", "y")) for client in cohort))

                def choose(self, offer):
                    local = offer.learner.state(Role.LOCAL)
                    seen.append(torch.cat([t.reshape(-1) for t in local.values()]).clone())
                    for tensor in local.values():
                        tensor.add_(1)
                    return "y"
        """
    })  # fmt: skip
    config = tiny(
        "plugins=[toys]", "exchange=star", "exchange.name=peeking", "merging=fedbn",
        "method=simclr", f"run_dir={tmp_path / 'bn'}", "evaluation.every=100",
    )  # fmt: skip
    run = federate(config, evaluate=False)
    from toys.exchanges.peeking import seen

    first, second = seen[:4], seen[4:]
    assert all(torch.equal(norms, first[0]) for norms in first)
    assert not any(torch.equal(norms, first[0]) for norms in second)
    assert all(norms.max() < 2 for norms in second)  # nothing was ever added
    assert [r["clients"]["ok"] for r in run.records[1:]] == [4, 4]


def test_an_exchange_that_keeps_state_needs_a_folder(moving):
    client = OrchestraClient(moving(), "a", torch.zeros(4, 1, 8, 8, dtype=torch.uint8))
    arrays = [np.zeros(8, np.float32)] * 2
    with pytest.raises(ValueError, match="client a keeps state .* without a folder"):
        client.fit(arrays, {"round": 1, "train": True, "models": ["x", "y"]})


def test_a_client_with_another_version_of_a_users_package_is_refused(toy, federate, watched):
    """When client b has answered, the package is another one: c and d are as in a new worker."""
    folder = toy.package({"exchanges/halves.py": HALVES})

    def change(client, round_, sent, reply):
        if (client, round_) == ("b", 1):
            (folder / "methods" / "linear.py").open("a").write("# another version")
            del sys.modules["toys"]

    config = toy("exchange=star", "exchange.name=halves", "federation.rounds=1")
    run = federate(config, app=watched(change), evaluate=False)
    dropped = {entry["client"]: entry["reason"] for entry in run.records[1]["clients"]["dropped"]}
    assert dropped.keys() == {"c", "d"}
    assert all("both must run the same version" in reason for reason in dropped.values())
