"""When Ray is started and ended, on a Ray that only counts; a real one is in test_ray.py."""

import sys
import threading
import warnings
from types import SimpleNamespace

import pytest

from orchestra_flwr.cli import main
from orchestra_flwr.federation import simulation
from orchestra_flwr.federation.engines import ray as ray_engine
from orchestra_flwr.flower.ray_start import RayStart, RayStartError, load_ray

ARGUMENTS = {"num_cpus": 2}


@pytest.fixture
def ray(monkeypatch):
    """A Ray that starts when it `may`."""
    state = SimpleNamespace(started=[], may=threading.Event(), fails=False, running=False, ended=0)

    def init(**named):
        assert state.may.wait(20)
        if state.fails:
            raise RuntimeError("no memory for it\nand more")
        state.started.append(named["num_cpus"])
        state.running = True

    def shutdown():
        state.ended += state.running
        state.running = False

    module = SimpleNamespace(init=init, shutdown=shutdown, is_initialized=lambda: state.running)
    monkeypatch.setitem(sys.modules, "ray", module)
    monkeypatch.setitem(sys.modules, "ray.job_config", SimpleNamespace(JobConfig=object))
    monkeypatch.setitem(sys.modules, "flwr.simulation", SimpleNamespace())
    yield state
    state.may.set()
    threads_end()


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "ray start"]


def threads_end():
    for thread in threads():
        thread.join(20)
        assert not thread.is_alive()


def test_it_runs_until_its_end_in_a_thread_that_lives_as_long(ray):
    start = RayStart(ARGUMENTS)
    assert not ray.running  # images are decoded meanwhile
    ray.may.set()
    start.wait()
    assert ray.running and ray.started == [2]
    (thread,) = threads()  # to which Ray ties its processes
    assert thread.is_alive()
    start.end()
    threads_end()
    assert ray.ended == 1


def test_a_run_that_does_not_come_about_leaves_no_ray_and_waits_for_none(ray):
    start = RayStart(ARGUMENTS)
    start.end()  # returns though Ray is not up
    ray.may.set()
    threads_end()
    assert ray.ended == 1 and not ray.running


def test_the_next_one_begins_when_the_last_has_ended(ray):
    first, second = RayStart(ARGUMENTS), RayStart({"num_cpus": 1})
    ray.may.set()
    first.wait()
    assert ray.started == [2]
    first.end()
    second.wait()
    assert ray.started == [2, 1] and ray.ended == 1
    second.end()


def test_what_kept_it_from_starting_is_told_where_it_is_needed(ray):
    ray.fails = True
    ray.may.set()
    start = RayStart(ARGUMENTS)
    with pytest.raises(RayStartError, match="no memory for it"):
        start.wait()


def test_a_run_uses_what_was_begun(ray, tiny, monkeypatch):
    ray.may.set()
    states = []
    monkeypatch.setattr(ray_engine, "_run_ray", lambda *_: states.append(ray.running) or {})
    config = tiny("engine=ray", "engine.workers=1")
    engine = config.engine.build(config)
    engine.begin()
    engine.run(lambda *_: {}, 2)
    assert states == [True] and ray.started == [1]
    assert ray.running
    engine.end()
    threads_end()
    assert ray.ended == 1


def test_it_begins_before_images_are_decoded_and_ends_if_they_cannot_be(monkeypatch, tmp_path):
    calls = []
    engine = SimpleNamespace(begin=lambda: calls.append("begin"), end=lambda: calls.append("end"))
    monkeypatch.setattr(simulation, "check_resources", lambda config: engine)
    loaded = simulation.load_population

    def load(config, listed):
        calls.append("images")
        return loaded(config)

    monkeypatch.setattr(simulation, "load_population", load)
    assert main(["data=image_folder", f"data.root={tmp_path / 'missing'}"]) == 2
    assert calls == ["begin", "images", "end"]


def test_faults_that_python_finds_in_rays_code_are_not_shown(ray, recwarn):
    load_ray()
    warnings.warn_explicit("a return", SyntaxWarning, "/packages/ray/_common/usage.py", 1)
    assert not recwarn.list
    warnings.warn_explicit("a return", SyntaxWarning, "/packages/my_package/method.py", 1)
    assert [warning.filename for warning in recwarn.list] == ["/packages/my_package/method.py"]
