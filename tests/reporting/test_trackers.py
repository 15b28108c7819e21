import json
import struct
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from orchestra_flwr.config import ConfigError
from orchestra_flwr.reporting import TrackedRun, Trackers, check_trackers
from orchestra_flwr.reporting import trackers as trackers_module
from orchestra_flwr.reporting.trackers import ROOM

RECORD = {
    "round": 1,
    "seconds": 4.5,
    "clients": {"ok": 10, "dropped": [{"client": 4, "reason": "late"}]},
    "loss": {"total": 0.5, "broken": None},
    "scores": {"target": {"knn": 0.25}},
    "release": {"smallest_group": 3, "clients": {"north": 3}},
    "privacy": {"centroids": {"epsilon": 1.5, "releases": {"north": 2}}},
    "note": "text",
    "flag": True,
}
NUMBERS = {
    "seconds",
    "clients/ok",
    "loss/total",
    "scores/target/knn",
    "release/smallest_group",
    "privacy/centroids/epsilon",
}  # of no single client
RED = np.full((4, 6, 3), (255, 0, 0), np.uint8)


@pytest.fixture(params=["tensorboard", "wandb", "mlflow"])
def tracker(request, tmp_path, monkeypatch):
    """The name of a tracker whose library is installed; it writes below `tmp_path` alone."""
    pytest.importorskip(request.param)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)
    return request.param


@pytest.fixture
def tracked(tmp_path, tracker, tiny):
    """Opens a run: of this name, with this id."""
    folder = tmp_path / "run"
    folder.mkdir()
    Image.fromarray(RED).save(folder / "curves.png")
    config = tiny(f"logging.{tracker}=true", "seed=7")

    def opened(message=pytest.fail, id="abc"):
        run = TrackedRun(folder, "orchestra/first", id, config.model_dump(mode="json"))
        return Trackers(config, run, message)

    return opened, folder


class FromTensorboard:
    def __init__(self, folder):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(folder / "tensorboard"))
        events.Reload()
        tags = events.Tags()
        self.numbers = {t: [(e.step, e.value) for e in events.Scalars(t)] for t in tags["scalars"]}
        assert events.Images("curves")[0].width == 6
        (text,) = events.Tensors("configuration/text_summary")[0].tensor_proto.string_val
        self.seed = json.loads(text)["seed"]
        self.completed = True  # event files do not say


class FromMlflow:
    def __init__(self, folder):
        from mlflow import MlflowClient

        client = MlflowClient()
        experiment = client.get_experiment_by_name("orchestra_flwr")
        (run,) = client.search_runs([experiment.experiment_id])
        self.numbers = {
            key: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, key)]
            for key in run.data.metrics
        }
        assert run.info.run_name == "orchestra/first"
        self.seed = int(run.data.params["seed"])
        assert run.data.params["method.name"] == "orchestra"
        self.pictures = [file.path for file in client.list_artifacts(run.info.run_id)]
        self.completed = run.info.status == "FINISHED"


def messages_in(data):
    """The messages of a file in LevelDB's log format, which begins with seven bytes of wandb."""
    place, parts = 7, b""
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:  # too few for a header: the next block follows
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        if place + 7 + length > len(data):  # it is being written
            return
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def finished_records(file):
    """The records of a session of wandb, whose own process may still be writing them."""
    from wandb.proto import wandb_internal_pb2 as messages

    end = time.monotonic() + 100
    while True:
        records = [messages.Record.FromString(data) for data in messages_in(file.read_bytes())]
        if any(record.HasField("exit") for record in records):
            return records
        assert time.monotonic() < end, f"{file} has no end"
        time.sleep(0.05)


class FromWandb:
    """What is in the files that `wandb sync` would send."""

    def __init__(self, folder):
        self.numbers, self.completed, self.has_axis = {}, None, False
        for file in sorted(folder.glob("wandb/offline-run-*/run-abc.wandb")):
            for record in finished_records(file):
                self._read(record)
        self.pictures = [p.name for p in folder.glob("wandb/offline-run-*/files/media/images/*")]
        assert all(name.startswith("curves") for name in self.pictures)

    def _read(self, record):
        if record.HasField("run"):
            assert record.run.display_name == "orchestra/first"
            assert record.run.project == "orchestra_flwr"
            config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
            self.seed = config.get("seed", getattr(self, "seed", None))
        elif record.HasField("history"):
            values = {
                "/".join(item.nested_key) or item.key: json.loads(item.value_json)
                for item in record.history.item
            }
            step = values.pop("round")
            for key, value in values.items():
                if not key.startswith(("_", "curves")):
                    self.numbers.setdefault(key, []).append((step, value))
        elif record.HasField("metric") and record.metric.glob_name == "*":
            assert record.metric.step_metric == "round"
            self.has_axis = True
        elif record.HasField("exit"):
            self.completed = record.exit.exit_code == 0


READERS = {"tensorboard": FromTensorboard, "wandb": FromWandb, "mlflow": FromMlflow}


def test_numbers_configuration_name_and_pictures_are_read_back(tracked, tracker):
    opened, folder = tracked
    with opened() as trackers:
        trackers.add(1, RECORD)
        trackers.add(2, {**RECORD, "scores": {"target": {"knn": 0.5}}})
        trackers.finish(2, {"knn": 0.5, "versions": {"torch": "2"}}, folder)
    logged = READERS[tracker](folder)
    assert set(logged.numbers) == {*NUMBERS, "summary/knn"}
    assert logged.numbers["scores/target/knn"] == [(1, 0.25), (2, 0.5)]
    assert logged.numbers["summary/knn"] == [(2, 0.5)]
    assert logged.seed == 7
    assert getattr(logged, "pictures", ["curves"])
    assert logged.completed


def test_a_run_that_is_stopped_is_one_run_when_it_is_resumed(tracked, tracker):
    opened, folder = tracked
    with pytest.raises(KeyboardInterrupt), opened() as trackers:
        trackers.add(1, RECORD)
        raise KeyboardInterrupt
    if tracker == "mlflow":
        assert not FromMlflow(folder).completed
    with opened() as trackers:
        trackers.add(2, RECORD)
        trackers.finish(2, {}, folder)
    logged = READERS[tracker](folder)
    assert [step for step, _ in logged.numbers["loss/total"]] == [1, 2]
    assert logged.completed


def test_rounds_that_are_repeated_are_kept(tracked, tracker):
    """As after `resume_round=`. wandb drops what is logged at an earlier one of its own steps."""
    opened, folder = tracked
    with opened() as trackers:
        for number in (1, 2, 1):
            trackers.add(number, RECORD)
        trackers.finish(2, {}, folder)
    logged = READERS[tracker](folder)
    assert sorted(step for step, _ in logged.numbers["loss/total"]) == [1, 1, 2]
    assert getattr(logged, "has_axis", True)


def test_a_number_may_have_any_name(tracked, tracker):
    """With a letter that a tracker lacks, as a model or node may have one."""
    opened, folder = tracked
    with opened() as trackers:
        trackers.add(1, {**RECORD, "loss": {"Süd & Co. (2)": 1.5}})
        trackers.finish(1, {}, folder)
    logged = READERS[tracker](folder)
    shown = {"mlflow": "loss/Süd _ Co. _2_"}.get(tracker, "loss/Süd & Co. (2)")
    assert [step for step, _ in logged.numbers[shown]] == [1]


def test_a_tracker_that_fails_does_not_end_the_run(tracked, tracker, monkeypatch):
    opened, _ = tracked
    lines = []
    with opened(lines.append) as trackers:
        asked = []

        def full(one, *_):
            asked.append(one)
            raise OSError("no space left\non device")

        monkeypatch.setattr(ROOM.find(tracker), "numbers", full)
        trackers.add(1, RECORD)
        trackers.add(2, RECORD)
        (one,) = asked
        one.close(False)
    assert lines == [f"logging.{tracker}: no space left on device; not logged for an hour"]


def test_a_tracker_that_failed_is_tried_again(tracked, tracker, monkeypatch):
    """Its server was away for a minute: a run of weeks logged nothing more there."""
    opened, folder = tracked
    now = time.monotonic()
    monkeypatch.setattr(trackers_module, "time", SimpleNamespace(monotonic=lambda: now))
    with opened(print) as trackers:
        with monkeypatch.context() as patched:
            patched.setattr(ROOM.find(tracker), "numbers", None)  # what it raises is its own affair
            trackers.add(1, RECORD)
        trackers.add(2, RECORD)
        now += trackers_module.AGAIN_SECONDS
        trackers.add(3, RECORD)
        trackers.finish(3, {}, folder)
    steps = {step for values in READERS[tracker](folder).numbers.values() for step, _ in values}
    assert steps == {3}


def test_a_tracker_that_failed_is_told_of_the_end(tracked, tracker, monkeypatch):
    """Within the hour in which it is left out: its page would show a running run for ever."""
    opened, folder = tracked
    closed = []
    with opened(print) as trackers:
        one = ROOM.find(tracker)
        close = one.close
        monkeypatch.setattr(one, "close", lambda *a: (closed.append(a[1]), close(*a)))
        with monkeypatch.context() as patched:
            patched.setattr(one, "numbers", None)
            trackers.add(1, RECORD)
        trackers.finish(1, {}, folder)
    assert closed == [True]


def test_one_that_cannot_be_opened_is_refused(tracked, tracker, monkeypatch):
    opened, folder = tracked
    if tracker == "tensorboard":
        (folder / "tensorboard").write_text("a file where the folder should be")
    elif tracker == "wandb":
        monkeypatch.setenv("WANDB_PROJECT", "no/such#name")
    else:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "gopher://nowhere")
    with pytest.raises(ConfigError, match=f"^logging.{tracker}=true: .+") as caught:
        opened()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_without_its_library_one_line_says_what_to_install(name, monkeypatch, tiny):
    check_trackers(tiny())
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError) as caught:
        check_trackers(tiny(f"logging.{name}=true"))
    assert str(caught.value) == (
        f"logging.{name}=true: {name} is not installed; pip install 'orchestra-flwr[{name}]'"
    )
