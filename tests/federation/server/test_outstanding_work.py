"""Real clients that begin and end when they can: rounds worked by hand."""

from copy import copy

import pytest
from flwr.app import Error, Message

from orchestra_flwr.federation.engines.inline import InlineGrid
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.messages.fields import CONFIG
from orchestra_flwr.federation.server import outstanding_work
from orchestra_flwr.federation.server.members import ConnectedMembers
from orchestra_flwr.federation.server.named_models import Models
from orchestra_flwr.flower.superlink_grid import SuperLinkGrid
from orchestra_flwr.reporting import RunFolder

BRIGHTNESS = {"a": 0.0, "b": 0.2, "c": 0.4, "d": 1.0}
SECONDS = {"a": 1.0, "b": 2.2, "c": 3.9, "d": 10.2}  # of a round
NEVER = float("inf")
STEP = 0.05  # by which time passes when somebody looks


class PacedGrid(SuperLinkGrid):
    """Each client works for its seconds; time passes when nobody has answered."""

    def __init__(self, app, seconds=SECONDS, failing=()):
        self._inline, self.seconds, self.failing = InlineGrid(app), seconds, failing
        self.now, self._due, self.tasks, self.given_up = 0.0, {}, [], []
        self._uploads, self.failed = {}, []

    def get_node_ids(self):
        return self._inline.get_node_ids()

    def push_messages(self, messages):
        for message in messages:
            task = message.content[CONFIG]
            client = task["client"]
            key = f"{client}{len(self.tasks)}"
            self.tasks.append((client, task["round"], dict(task)))
            self._due[key] = (self.now + self.seconds[client], client, copy(message))
            yield key

    def look(self, message_ids):
        due = sorted((self._due[key][0], key) for key in message_ids)
        if due and due[0][0] > self.now:
            self.now += STEP
        return {key: self._due[key][1] not in self.failing for at, key in due if at <= self.now}

    def fetch(self, key, message):
        _, client, message = self._due[key]
        if client in self.failing:
            self.failed.append(key)
            return Message(Error(code=1, reason="it failed"), reply_to=message)
        (reply,) = self._inline.send_and_receive([message])
        return reply

    def give_up(self, message_id):
        self.given_up.append(message_id)

    def send_and_receive(self, messages, *, timeout=None, came=None):
        return self._inline.send_and_receive(messages)

    def delete_late_replies(self):
        pass

    run = property(lambda self: None)


class Here(ConnectedMembers):
    """Clients that are here until they leave."""

    def __init__(self, grid, parts):
        super().__init__(grid, None, len(parts), lambda line: None)
        self.images = {name: len(part) for name, part in parts.items()}
        self._nodes = dict.fromkeys(parts, grid.get_node_ids()[0])
        self.lost = []

    def present(self):
        return dict(self._nodes)

    def mark_lost(self, names):
        self.lost += names


@pytest.fixture
def real(toy, monkeypatch):
    monkeypatch.setattr(outstanding_work, "LOOK_SECONDS", 0)

    def make(*overrides, run="run", timeout=60.0):
        config = toy(
            "clock=virtual", "exchange=buffered", "exchange.buffer=2", "federation.rounds=7",
            "federation.weighting=uniform", *overrides, run=run,
        )  # fmt: skip
        of_server = {"min_clients": 4, "round_timeout": timeout}
        federation = config.federation.model_copy(update=of_server)
        return config.model_copy(update={"federation": federation, "clock": toy().clock})

    return make


def arrivals(run):
    return [record["exchange"]["arrivals"] for record in run.records[1:]]


def test_updates_of_real_clients_worked_by_hand(federate, real):
    """The same as on a virtual clock: `tests/federation/runs/test_buffered_runs.py`."""
    grids = []

    def grid(app):
        grids.append(PacedGrid(app))
        return grids[0]

    run = federate(real(), grid=grid, members=Here)
    assert arrivals(run) == [
        [["a", 0], ["b", 0]],
        [["a", 1], ["c", 0]],
        [["b", 1], ["a", 2]],
        [["a", 3], ["b", 3]],
        [["c", 2], ["a", 4]],
        [["a", 5], ["b", 4]],
        [["d", 0], ["a", 6]],
    ]
    model, versions = 0.0, [0.0]
    for number, results in enumerate(arrivals(run), 1):
        changes = []
        for client, version in results:
            trained = versions[version] + 0.5 * (BRIGHTNESS[client] - versions[version])
            changes.append((trained - versions[version]) / (number - version) ** 0.5)
        model += sum(changes) / len(changes)
        versions.append(model)
    assert float(run.state["weights"][0, 0]) == pytest.approx(model, rel=1e-5)
    sent = [(client, number) for client, number, _ in grids[0].tasks]
    assert sent[:6] == [("a", 1), ("b", 1), ("c", 1), ("d", 1), ("a", 2), ("b", 2)]
    assert grids[0].given_up  # who is at work when the run ends
    model_bytes = run.summary["bytes_up"] / 14  # results
    assert run.summary["bytes_down"] == model_bytes * len(grids[0].tasks) > 0


@pytest.mark.parametrize("wire", [pytest.param("float32", marks=pytest.mark.slow), "int8"])
def test_a_replay_in_a_simulation_has_the_same_bits(federate, real, toy, wire):
    run = federate(real(f"federation.wire={wire}"), grid=PacedGrid, members=Here)
    replay = ("exchange=buffered", f"exchange.replay={run.folder.path}")
    uniform = ("federation.weighting=uniform", "federation.rounds=7")
    again = federate(toy(*replay, *uniform, f"federation.wire={wire}", run="replay"))
    assert arrivals(run) == arrivals(again)
    for name, tensor in again.state.items():
        assert name.startswith("exchange/") or tensor.equal(run.state[name])


def test_a_model_is_encoded_once_however_many_begin_with_it(federate, real, monkeypatch):
    encoded, arrays = [], Models.arrays
    monkeypatch.setattr(
        Models, "arrays", lambda self, name: encoded.append(name) or arrays(self, name)
    )
    federate(real(), grid=PacedGrid, members=Here)
    assert len(encoded) == 7  # rounds, in which 16 clients began


def test_where_all_have_left_a_round_waits_for_clients(federate, real):
    members = []

    class Leaving(Here):
        """All leave when the third round begins, and come back when somebody waits for them."""

        waited = 0

        def present(self):
            return {} if self.waited == 4 else super().present()

        def connected(self):
            self.waited += 1
            return self._nodes

    def here(grid, parts):
        members.append(Leaving(grid, parts))
        return members[0]

    run = federate(real("exchange.buffer=4"), grid=PacedGrid, members=here)
    assert all(len(round_) == 4 for round_ in arrivals(run))
    assert members[0].waited == 14  # where nobody works each round, too


def test_a_client_is_told_the_round_of_its_own_work_that_was_used(federate, real):
    grids = []

    def grid(app):
        grids.append(PacedGrid(app))
        return grids[0]

    federate(real(), grid=grid, members=Here)
    used = [
        (number, task.get("trained")) for client, number, task in grids[0].tasks if client == "c"
    ]
    assert used == [(1, None), (3, 1), (6, 3)]  # round 2 used what c began in round 1


def test_clients_that_fail_are_dropped_and_the_others_fill_the_buffer(federate, real):
    failing = lambda app: PacedGrid(app, failing=("b",))  # noqa: E731
    run = federate(real(), grid=failing, members=Here)
    assert all("b" not in dict(round_) and len(round_) == 2 for round_ in arrivals(run))
    first = run.records[1]["clients"]
    assert first["dropped"] == [{"client": "b", "reason": "it failed"}] or "b" in str(first)


def test_failures_beside_a_full_buffer_end_no_run(federate, real):
    failing = lambda app: PacedGrid(app, failing=("a", "b"))  # noqa: E731
    run = federate(real("federation.min_success=0.9"), grid=failing, members=Here)
    clients = run.records[1]["clients"]
    assert clients["ok"] == 2 and len(clients["dropped"]) == 2


def test_the_seconds_of_clients_are_those_since_they_were_asked(
    federate, real, watched, monkeypatch
):
    monkeypatch.setattr(outstanding_work, "LOOK_SECONDS", 0.01)  # 24 looks in the first round

    def slow(client, round_, sent, reply):
        reply.content["metrics"]["seconds"] = 0.15

    run = federate(real("federation.rounds=1"), app=watched(slow), grid=PacedGrid, members=Here)
    assert run.records[1]["clients"]["mean_seconds"] == pytest.approx(0.15)


def test_a_client_that_never_answers_is_given_up_after_the_timeout(federate, real):
    members = []

    def here(grid, parts):
        members.append(Here(grid, parts))
        return members[0]

    silent = lambda app: PacedGrid(app, {**SECONDS, "a": NEVER})  # noqa: E731
    config = real("federation.rounds=12", timeout=0.2)  # all rounds together take longer
    run = federate(config, grid=silent, members=here)
    assert "a" in members[0].lost
    assert all("a" not in dict(round_) for round_ in arrivals(run))
    assert any("no reply within" in str(record["clients"]) for record in run.records[1:])


def test_where_all_fail_the_run_ends_in_a_line(federate, real):
    failing = lambda app: PacedGrid(app, failing=tuple("abcd"))  # noqa: E731
    with pytest.raises(FederationError, match="round 1: 0 of 2 clients answered well"):
        federate(real(), grid=failing, members=Here)


def test_what_is_under_way_is_given_up_when_the_run_fails(federate, real, watched):
    grids = []

    def grid(app):
        grids.append(PacedGrid(app))
        return grids[0]

    def broken(client, round_, sent, reply):
        return Message(Error(code=1, reason="it failed"), reply_to=reply) if client == "a" else None

    with pytest.raises(FederationError, match="round 1: 1 of 2 clients answered well"):
        federate(real("federation.min_success=1"), app=watched(broken), grid=grid, members=Here)
    assert len(grids[0].given_up) == 2  # of c and d


def test_a_resumed_run_asks_all_clients_anew(federate, real):
    config = real()
    folder = RunFolder.create(config)
    calls = []

    def dies(app):
        grid = PacedGrid(app)
        fetch = grid.fetch

        def fetched(key, message):
            calls.append(key)
            if len(calls) == 6:
                raise KeyboardInterrupt
            return fetch(key, message)

        grid.fetch = fetched
        return grid

    with pytest.raises(KeyboardInterrupt):
        federate(config, grid=dies, folder=folder, members=Here)
    grids = []

    def grid(app):
        grids.append(PacedGrid(app))
        return grids[0]

    run = federate(config, grid=grid, folder=RunFolder.resume(folder.path), members=Here)
    assert [(c, n) for c, n, _ in grids[0].tasks][:4] == [("a", 3), ("b", 3), ("c", 3), ("d", 3)]
    assert arrivals(run)[2] == [["a", 2], ["b", 2]]
    assert not any(name.startswith("exchange/") for name in run.state)


def test_who_has_left_and_answered_all_the_same_is_not_asked_for_scores(federate, real):
    class Leaves(Here):
        def connected(self):
            if any(client == "a" and number == 2 for client, number, _ in self.grid.tasks):
                if self._nodes.pop("d", None):
                    del self.images["d"]  # as of real members, :meth:`_forget_absent`
                self.min_clients = 3
            return super().connected()

    run = federate(
        real("evaluation.unsupervised=true", "evaluation.every=1"), grid=PacedGrid, members=Leaves
    )
    late = next(n for n, round_ in enumerate(arrivals(run), 1) if "d" in dict(round_))
    assert late > 2 and "unsupervised" in run.records[late]


def test_of_clients_that_fail_at_once_each_failure_is_fetched_once(federate, real):
    grids = []

    def grid(app):
        grids.append(PacedGrid(app, {**SECONDS, "a": 1.0, "b": 1.0}, failing=("a", "b")))
        return grids[0]

    federate(real("federation.rounds=1"), grid=grid, members=Here)
    assert sorted(key[0] for key in grids[0].failed) == ["a", "b"]


def test_a_client_that_came_back_on_another_node_is_sent_its_task_there(federate, real):
    nodes = []

    class Returns(Here):
        def connected(self):
            before = super().connected()
            if self.grid.tasks:  # while the second round is on
                self._nodes["a"] = 77
            return before

    class Noted(PacedGrid):
        def push_messages(self, messages):
            nodes.extend((m.content[CONFIG]["client"], m.metadata.dst_node_id) for m in messages)
            return super().push_messages(messages)

    federate(real("federation.rounds=2"), grid=Noted, members=Returns)
    assert [node == 77 for client, node in nodes if client == "a"] == [False, True]
