"""A simulation that is started from Python."""

import importlib.util
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

import orchestra_flwr
from orchestra_flwr import ConfigError, FederationError, Result, simulate
from orchestra_flwr.config import load_config
from orchestra_flwr.data import load_dataset
from orchestra_flwr.federation.client.numpy_client import OrchestraClient
from orchestra_flwr.from_python import _lines

RANDOM = np.random.default_rng(0)
PICTURES = [
    Image.fromarray(RANDOM.integers(0, 256, (20, 24, 3), dtype=np.uint8)) for _ in range(40)
]
PAIRS = [(picture, "ab"[number % 2]) for number, picture in enumerate(PICTURES)]


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_overrides):
    """One run in a thread, of images that were passed, with what its progress reported."""
    folder = tmp_path_factory.mktemp("from_python")
    reports, results = [], []
    overrides = [*tiny_overrides[1:], "data.image_size=16", "evaluation.knn_k=3"]
    overrides += [f"data.cache={folder}", f"run_dir={folder}/run"]

    def work():
        results.append(simulate(overrides, (PAIRS[:30], PAIRS[30:]), progress=reports.append))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return results[0], reports


def test_a_thread_trains_on_images_that_were_passed(run):
    result, reports = run
    assert [report["round"] for report in reports] == [0, 1, 2]
    assert reports[0]["rounds"] == 2 and reports[2]["scores"]["knn"] == result.summary["knn"]
    assert result.summary["rounds"] == 2
    assert (result.folder / "encoder.safetensors").is_file()
    assert "linear probe, target" in str(result) and "\x1b" not in str(result)


def test_metrics_are_objects(run):
    rounds = run[0].metrics
    assert [round_.round for round_ in rounds if round_.loss] == [1, 2]
    last = rounds[-1]
    assert last.scores["target"]["linear"] == run[0].summary["linear"]
    assert last.bytes_up > 0 and last.seconds > 0 and last.loss["total"] > 0


@pytest.mark.skipif(not importlib.util.find_spec("pandas"), reason="needs pandas")
def test_metrics_are_a_frame(run):
    frame = run[0].frame()
    assert frame.index.tolist() == [0, 1, 2]
    assert frame.loc[2, "scores.target.knn"] == run[0].summary["knn"]
    assert frame["loss.total"].notna().tolist() == [False, True, True]


def test_a_result_follows_a_run_that_goes_on(tmp_path, monkeypatch):
    (tmp_path / "config.yaml").touch()
    monkeypatch.chdir(tmp_path)
    result, rounds = Result("."), []
    monkeypatch.chdir("/")
    for number in range(3):
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write(f'{{"round": {number}, "loss": {{"total": 1}}}}\n')
        (tmp_path / "summary.json").write_text(f'{{"rounds": {number}}}')
        rounds.append((len(result.metrics), result.summary["rounds"]))
        assert f"\n{number} round" in str(result)
    assert rounds == [(1, 0), (2, 1), (3, 2)]


@pytest.mark.skipif(not importlib.util.find_spec("pandas"), reason="needs pandas")
def test_before_the_first_round_ends_the_frame_is_empty(tmp_path):
    (tmp_path / "config.yaml").touch()
    frame = Result(tmp_path).frame()
    assert frame.empty and frame.index.name == "round"


def test_the_encoder_encodes_pictures(run):
    features = run[0].encoder.encode(PICTURES[:5])
    assert features.shape == (5, run[0].encoder.dim)
    images = torch.stack([run[0].encoder.preprocess(picture) for picture in PICTURES[:5]])
    assert torch.equal(run[0].encoder(images), features)


def test_its_pictures_are_figures(run):
    result = run[0]
    assert len(result.plot_curves().axes) == 5
    assert result.plot_partition().axes[1].get_ylabel() == "class"
    assert result.plot_curves().get_suptitle() == result.name == f"{result.folder.parent.name}/run"


def test_the_next_run_in_a_notebook_reads_images_that_have_changed(
    tiny_overrides, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # of the run folders, whose names are no part of a configuration

    def trained(folder):
        extra = ["data=image_folder", "partition=iid", "data.image_size=16", "federation.clients=2"]
        extra += ["evaluation.every=100", f"data.cache={tmp_path}/cache"]
        result = simulate([*tiny_overrides[1:], *extra, f"data.root={folder}"])
        return (result.folder / "encoder.safetensors").read_bytes()

    def write(folder, pictures):
        (tmp_path / folder).mkdir(exist_ok=True)
        for number, picture in enumerate(pictures):
            picture.save(tmp_path / folder / f"{number}.png")

    write("photos", PICTURES[:20])
    first = trained("photos")
    write("photos", PICTURES[20:])
    write("others", PICTURES[20:])
    second = trained("photos")
    assert second == trained("others") != first


def test_a_run_folder_is_opened_again(run, tmp_path):
    again = Result(run[0].folder)
    assert again.summary == run[0].summary and repr(again).startswith("Result('")
    with pytest.raises(FileNotFoundError, match="no run folder"):
        Result(tmp_path)
    (tmp_path / "config.yaml").write_text("")
    with pytest.raises(FileNotFoundError, match=r"summary\.json: no such file .a finished run lea"):
        _ = Result(tmp_path).summary


def test_a_run_that_was_stopped_prints_what_there_is_and_how_it_goes_on(tmp_path, tiny_overrides):
    def stop(report):
        if report["round"] == last:
            raise KeyboardInterrupt

    folder = tmp_path / "run"
    for last, done in ((0, "0 rounds"), (1, "1 round")):
        whole = [*tiny_overrides, "evaluation.every=1", f"run_dir={folder}"]
        with pytest.raises(KeyboardInterrupt):
            simulate([f"resume={folder}"] if last else whole, progress=stop)
        text = str(Result(folder))
        assert f"evaluated last after round {last}\n{done}, " in text and "kNN, target" in text
        assert "initial_statistics" not in text
        assert (
            f"The run has not ended. If it is not at work, continue with: resume={folder}" in text
        )
        assert ("gain" in text) == bool(last)
    (folder / "metrics.jsonl").unlink()
    assert str(Result(folder)).splitlines()[-1] == f"run folder: {folder}"


def test_the_run_can_be_resumed_without_its_data_set(run):
    assert simulate([f"resume={run[0].folder}"]).summary["rounds"] == 2
    assert simulate({"resume": run[0]}).summary["rounds"] == 2


def test_a_result_is_its_folder_where_one_is_expected(run):
    again = orchestra_flwr.load_encoder(run[0]).state_dict()
    assert all(map(torch.equal, run[0].encoder.state_dict().values(), again.values()))


@pytest.mark.parametrize(
    ("overrides", "dataset", "words"),
    [
        ("federation.rounds=5", None, r'overrides: must be a list such as \["federation'),
        (["rounds"], None, "overrides are written key=value"),
        ({"federation.rounds": -1}, None, "federation.rounds=-1"),
        (["data=digits"], PAIRS, r"data=digits: must not be given together with dataset="),
        (["method=simclr", "clustering.memory=9"], None, "clustering.memory: is not read by"),
        (["resume=x"], PAIRS, r"resume=x: must not be given together with dataset="),
        (["engine=inline"], [1, 2], "dataset: training image 0: an image must be a path"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_and_nothing_is_run(
    overrides, dataset, words, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=words) as error:
        simulate(overrides, dataset)
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


def test_a_preset_is_told_how_many_images_were_passed(
    tiny_overrides, user_package, tmp_path, monkeypatch
):
    """As preset=adapt, whose clients train on smaller ones if they are many."""
    user_package({"conf/preset/by_number.yaml": """
# @package _global_
preset_options:
  rows:
    - images_from: 29
      because: some
      choose: [federation.rounds=3]
    - images_from: 30
      tests_from: 10
      because: many
      choose: [data.image_size=16]
    - labelled: true
      because: labels
      choose: [evaluation.every=7]
"""})  # fmt: skip
    from orchestra_flwr import from_python

    class CheckedError(Exception):
        pass

    def seen(config):
        assert (config.federation.rounds, config.evaluation.every) == (3, 7)
        train = load_dataset(config.data).train
        assert (config.data.image_size, len(train)) == (16, 30)
        raise CheckedError

    monkeypatch.setattr(from_python, "prepared", seen)
    tiny = [o for o in tiny_overrides if not o.startswith(("data", "federation.rounds", "evalu"))]
    overrides = [*tiny, "plugins=[my_package]", "preset=by_number", f"data.cache={tmp_path}"]
    with pytest.raises(CheckedError):
        simulate(overrides, (PAIRS[:30], PAIRS[30:]))


def test_overrides_may_be_a_mapping(tiny_overrides, monkeypatch):
    from orchestra_flwr import from_python

    class CheckedError(Exception):
        pass

    def seen(config):
        assert config.federation.rounds == 3 and config.privacy.clip is None
        assert config.logging.tensorboard is False and config.plugins == ()
        raise CheckedError

    monkeypatch.setattr(from_python, "prepared", seen)
    values = dict(line.split("=") for line in tiny_overrides)
    more = {
        "federation.rounds": 3,
        "privacy.clip": None,
        "logging.tensorboard": False,
        "plugins": [],
    }
    with pytest.raises(CheckedError):
        simulate(values | more)


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        ("name", "2024", "2024"),
        ("name", "a, b: c #d", "a, b: c #d"),
        ("name", "it's", "it's"),
        ("run_dir", "runs (a), [b]\\'", "runs (a), [b]\\'"),
        ("method.classes", ["0", "it's, b"], ("0", "it's, b")),
        ("method.classes", "[a,b]", ("a", "b")),
        ("partition.options", {"a": ["1", "b: c"], "d": {"e": None}}, None),
    ],
)
def test_a_text_in_a_mapping_stays_what_it_is(key, value, found):
    groups = {"method": "supervised", "partition": "flwr_datasets"}
    lines = _lines({**groups, key: value})
    config = load_config(lines)
    section, _, option = key.partition(".")
    read = getattr(config, section)
    read = getattr(read.settings, option) if option else read
    assert (tuple(read) if isinstance(read, list) else read) == (found or value)


def test_importing_the_package_loads_no_library():
    """Commands that need no torch must not wait for it."""
    code = """
import sys, orchestra_flwr
assert {"Result", "load_encoder", "simulate"} <= set(dir(orchestra_flwr))
heavy = {"torch", "flwr", "numpy", "hydra", "matplotlib", "pandas"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        _ = orchestra_flwr.other


def test_what_it_raises_has_a_name_of_the_package(tmp_path, tiny_overrides, monkeypatch):
    assert {"ConfigError", "FederationError"} <= {*orchestra_flwr.__all__, *dir(orchestra_flwr)}
    with pytest.raises(ConfigError, match="method=simclrr"):
        simulate(["method=simclrr"])
    monkeypatch.setattr(OrchestraClient, "fit", lambda *_: 1 / 0)
    with pytest.raises(FederationError, match="round 0: 0 of 4 clients") as error:
        simulate([*tiny_overrides, f"run_dir={tmp_path / 'run'}"])
    assert any("resume=" in note for note in error.value.__notes__)


@pytest.mark.parametrize("block", [torch.no_grad, torch.inference_mode])
def test_it_trains_where_gradients_are_off(block, tmp_path, tiny_overrides):
    plain = simulate([*tiny_overrides, f"run_dir={tmp_path / 'plain'}"])
    with block():
        result = simulate([*tiny_overrides, f"run_dir={tmp_path / 'run'}"])
        assert not torch.is_grad_enabled()
    states = (each.encoder.state_dict() for each in (plain, result))
    assert all(map(torch.equal, *(state.values() for state in states)))


@pytest.mark.slow
def test_workers_of_ray_see_the_images_that_were_passed(tmp_path, tiny_overrides):
    results = []
    overrides = [*tiny_overrides[1:], "engine=ray", "data.image_size=16", f"data.cache={tmp_path}",
                 "partition=iid", f"run_dir={tmp_path}/run"]  # fmt: skip
    thread = threading.Thread(target=lambda: results.append(simulate(overrides, PICTURES)))
    thread.start()
    thread.join()
    assert results[0].summary["rounds"] == 2


def test_threads_compose_their_configurations_side_by_side():
    with ThreadPoolExecutor(4) as pool:
        seeds = pool.map(lambda seed: load_config([f"seed={seed}"]).seed, range(6))
        assert list(seeds) == list(range(6))


@pytest.mark.parametrize("state", ["merging=fedema", "exchange=cycle"])
def test_classes_whose_names_are_paths_keep_their_clients_files_apart(
    tmp_path, tiny_overrides, state
):
    """A client's state once lay wherever its class's name led, and all beside it was removed."""
    outside = tmp_path / "photographs"
    (outside / "of mine").mkdir(parents=True)
    names = ["a", "a/b", "..", str(outside)]
    images = [(picture, names[number % 4]) for number, picture in enumerate(PICTURES)]
    overrides = ["engine=inline", "method=simclr", "partition=by_class", "federation.clients=4"]
    overrides += ["federation.rounds=2", "federation.participation=1", "evaluation.every=9"]
    overrides += ["model=convnet", "model.width=8", "model.projector_dim=8", "data.image_size=16"]
    overrides += ["training.local_epochs=1", f"data.cache={tmp_path}/cache", state]
    simulate([*overrides, f"run_dir={tmp_path}/run"], images)
    assert [path.name for path in outside.iterdir()] == ["of mine"]
    clients, encoders = (tmp_path / "run" / name for name in ("clients", "encoders"))
    folders = {"a", "a%2Fb", "%2E%2E", str(outside).replace("/", "%2F")}
    if state == "exchange=cycle":
        assert {path.stem for path in encoders.iterdir()} == {f"node-{name}" for name in folders}
    else:
        assert {path.name for path in clients.iterdir()} == folders
        assert all(next(path.glob("*/2.safetensors")) for path in clients.iterdir())
