"""When Ray is started and ended, on a Ray that only counts; a real one is in test_ray.py."""

import sys
import threading
from types import SimpleNamespace

import pytest

from orchestra_flwr.cli import main
from orchestra_flwr.federation import simulation
from orchestra_flwr.federation.engines import ray_start
from orchestra_flwr.federation.server.round_report import FederationError

ARGUMENTS = {"num_cpus": 2}


@pytest.fixture
def ray(monkeypatch):
    """A Ray that starts when it `may`."""
    state = SimpleNamespace(started=[], may=threading.Event(), fails=False, running=False, ended=0)

    def init(**named):
        assert state.may.wait(20)
        if state.fails:
            raise RuntimeError("no memory for it\nand more")
        state.started.append({key: named[key] for key in ARGUMENTS})
        state.running = True

    def shutdown():
        state.ended += state.running
        state.running = False

    module = SimpleNamespace(init=init, shutdown=shutdown, is_initialized=lambda: state.running)
    monkeypatch.setitem(sys.modules, "ray", module)
    monkeypatch.setitem(sys.modules, "flwr.simulation", SimpleNamespace())
    yield state
    state.may.set()
    ray_start.end()


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "ray start"]


def threads_end():
    for thread in threads():
        thread.join(20)


def test_what_was_begun_is_used_once(ray):
    ray_start.begin(ARGUMENTS)
    assert not ray.running  # images are decoded meanwhile
    ray.may.set()
    ray_start.finish(ARGUMENTS)
    assert ray.running and ray.started == [ARGUMENTS]
    (thread,) = threads()  # to which Ray ties its processes
    assert thread.is_alive()
    ray_start.end()
    threads_end()
    assert ray.ended == 1


def test_without_a_beginning_it_is_started_where_it_is_needed(ray):
    ray.may.set()
    ray_start.finish(ARGUMENTS)
    assert ray.started == [ARGUMENTS]


def test_a_run_that_does_not_come_about_leaves_no_ray_and_waits_for_none(ray):
    ray_start.begin(ARGUMENTS)
    ray_start.end()  # returns though Ray is not up
    ray.may.set()
    threads_end()
    assert ray.ended == 1 and not ray.running
    ray_start.begin(ARGUMENTS)
    ray_start._begun[0].wait()
    ray_start.end()
    threads_end()
    assert ray.ended == 2 and not ray.running


def test_a_run_with_other_resources_gets_a_ray_of_its_own(ray):
    ray_start.begin(ARGUMENTS)
    ray.may.set()
    ray_start.finish({"num_cpus": 1})
    assert ray.started == [ARGUMENTS, {"num_cpus": 1}] and ray.ended == 1


def test_what_kept_it_from_starting_is_told_where_it_is_needed(ray):
    ray.fails = True
    ray.may.set()
    ray_start.begin(ARGUMENTS)
    with pytest.raises(FederationError, match="Ray does not start here: no memory for it"):
        ray_start.finish(ARGUMENTS)


def test_it_begins_before_images_are_decoded_and_ends_if_they_cannot_be(monkeypatch, tmp_path):
    calls = []
    engine = SimpleNamespace(begin=lambda: calls.append("begin"), end=lambda: calls.append("end"))
    monkeypatch.setattr(simulation, "check_resources", lambda config: engine)
    loaded = simulation.load_population

    def load(config):
        calls.append("images")
        return loaded(config)

    monkeypatch.setattr(simulation, "load_population", load)
    assert main(["data=image_folder", f"data.root={tmp_path / 'missing'}"]) == 2
    assert calls == ["begin", "images", "end"]
