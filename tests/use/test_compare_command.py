"""`orchestra-compare` as a person calls it."""

import json
import os
import re
import shutil

import pytest
import torch
from safetensors.torch import save_file

from orchestra_flwr import load_encoder
from orchestra_flwr.cli import compare_main
from orchestra_flwr.cli import main as simulate_main
from orchestra_flwr.config import ModelConfig, config_to_yaml
from orchestra_flwr.models import Encoder, EncoderSpec, save_encoder


@pytest.fixture
def command(capsys):
    def call(*arguments):
        code = compare_main(["device=cpu", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def other(tmp_path):
    """An encoder of another size, of gray images."""
    torch.manual_seed(1)
    spec = EncoderSpec(model=ModelConfig(name="convnet", width=16), channels=1, image_size=24)
    save_encoder(tmp_path / "other.safetensors", Encoder(spec))
    return tmp_path / "other.safetensors"


def rows(out):
    lines = [line for line in out.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_two_encoders_of_different_kinds_with_class_folders(
    run, other, photos, command, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "20")  # of a narrow terminal, which cuts nothing off
    code, out, err = command(f"before={other}", f"after={run}", f"images={photos}",
                             "labels=folders", "queries=5")  # fmt: skip
    assert code == 0, err
    table = rows(out)
    assert table[0] == ["score", "before", "after", "difference"]
    assert "\nmore is better in every row\n" in out and "| score (align + 0.2 unif) " in out
    names = [row[0] for row in table[2:]]
    assert names[:3] == ["kNN", "linear probe", "alignment"]
    assert re.search(r"no difference that 36 images can show: .*|better: .*|WORSE: .*", out)
    stored = json.loads((run / "comparison" / "comparison.json").read_text())
    assert stored["images"] == 36 and set(stored["accuracies"]) == {"knn", "linear"}
    assert stored["accuracies"]["knn"]["after"] > 0.9  # three colours
    rank = table[2 + names.index("effective rank")]
    rank_before = stored["label_free"]["effective_rank"]["before"]
    assert float(rank[1]) == pytest.approx(rank_before, rel=0.01)
    assert out.splitlines()[-1] == (
        "before sees 24 x 24 pixels of each image and after 16 x 16, so the difference is not that "
        "of training alone"
    )


def test_the_page_has_neighbours_side_by_side_and_needs_no_network(run, other, photos, command):
    command(f"before={other}", f"after={run}", f"images={photos}", "labels=folders", "queries=4")
    page = (run / "comparison" / "comparison.html").read_text()
    assert page.count("<article>") == 4
    assert page.count('role="img"') == 4 * (1 + 6 + 6)
    assert "url(data:image/webp;base64," in page and "http" not in page
    first = re.findall(r'aria-label="(\w+)/\d+.png (\w+)"', page)
    assert first and all(folder == label for folder, label in first)
    framed = re.findall(r'class="picture s\d+ other"[^>]*aria-label="(\w+)/', page)
    unframed = re.findall(r'class="picture s\d+"[^>]*aria-label="(\w+)/', page)
    assert len(framed) + len(unframed) == 4 * 13


def test_a_full_disk_loses_no_scores(run, other, photos, command, monkeypatch):
    def disk_is_full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_is_full)
    code, out, err = command(f"before={other}", f"after={run}", f"images={photos}")
    assert code == 1 and "No space left" in err and "comparison.json" in err
    assert "nearest neighbours in common" in out and "page:" not in out
    assert "effective rank" in [row[0] for row in rows(out)]


def test_a_name_that_is_not_utf_8_is_shown_escaped(run, other, photos, command, tmp_path):
    odd = os.fsdecode(b"\x1b[31m\xff.png")
    shutil.copytree(photos, tmp_path / "odd")
    (tmp_path / "odd" / "red" / "01.png").rename(tmp_path / "odd" / "red" / odd)
    arguments = (f"before={other}", f"after={run}", f"images={tmp_path / 'odd'}", "queries=40")
    code, _, err = command(*arguments)
    assert code == 0, err
    page = (run / "comparison" / "comparison.html").read_text()
    assert r"red/\x1b[31m\xff.png" in page and "\x1b" not in page


def test_by_default_it_is_held_against_the_runs_start(tiny_overrides, photos, tmp_path, command):
    folder = tmp_path / "trained"
    assert simulate_main([*tiny_overrides, f"run_dir={folder}", "data.image_size=8"]) == 0
    code, out, err = command(f"after={folder}", f"images={photos}", "queries=0")
    assert code == 0, err
    assert "no verdict: without labels" in out and "nearest neighbours in common" in out
    assert not (folder / "comparison" / "comparison.html").exists()
    same, out, _ = command(f"after={folder}", f"before={folder}", f"images={photos}", "queries=0")
    assert same == 0 and "in common: 100 %" in out
    differences = [row[3] for row in rows(out)[2:]]
    assert {float(value) for value in differences} == {0.0}


def test_the_start_of_a_run_whose_classes_came_from_its_images(
    tiny_overrides, photos, tmp_path, command
):
    options = [o for o in tiny_overrides if not o.startswith(("clustering", "model.projector"))]
    options += ["data=image_folder", f"data.root={photos}", "data.image_size=8"]
    options += ["method=supervised", "model.norm=group", "partition=iid", "federation.rounds=0"]
    assert simulate_main([*options, f"run_dir={tmp_path / 'run'}"]) == 0
    code, out, err = command(f"after={tmp_path / 'run'}", f"images={photos}", "queries=0")
    assert code == 0, err
    assert [row[1] == row[2] for row in rows(out)[2:]] == [True] * 4


def test_a_run_with_real_clients_is_held_against_its_start_as_well(
    tiny_overrides, photos, tmp_path, command, capsys
):
    folder = tmp_path / "trained"
    assert simulate_main([*tiny_overrides, f"run_dir={folder}", "data.image_size=8"]) == 0
    capsys.readouterr()  # of the simulation
    _, simulated, _ = command(f"after={folder}", f"images={photos}", "queries=0")
    with (folder / "config.yaml").open("a") as file:  # what a server's has beside
        file.write("host: 0.0.0.0\nport: 8443\ninsecure: false\nsecurity: security\n")
    code, served, err = command(f"after={folder}", f"images={photos}", "queries=0")
    assert code == 0, err
    assert rows(served) == rows(simulated) != []


@pytest.mark.slow
def test_a_pretrained_start_is_taken_as_it_was(tiny_overrides, photos, tmp_path, command):
    start = tmp_path / "start"
    assert simulate_main([*tiny_overrides, f"run_dir={start}"]) == 0
    run = tmp_path / "trained"
    assert simulate_main([*tiny_overrides, f"run_dir={run}", f"init={start}"]) == 0
    figures = []
    for before in ([], [f"before={start}"]):
        code, _, err = command(f"after={run}", *before, f"images={photos}", "queries=0")
        assert code == 0, err
        stored = json.loads((run / "comparison" / "comparison.json").read_text())
        figures.append(stored["label_free"])
    assert figures[0] == figures[1]
    assert load_encoder(run).dim == load_encoder(start).dim
    save_encoder(start / "encoder.safetensors", Encoder(load_encoder(start).spec))
    code, _, err = command(f"after={run}", f"images={photos}", "queries=0")
    assert code == 2
    assert err.splitlines()[-1] == (
        f"error: before: must be given, the run began with other weights of init={start}"
    )


def test_labels_from_a_table_choose_the_images(run, other, photos, command, tmp_path):
    table = tmp_path / "labels.csv"
    lines = [f"{c}/{n:02d}.png,{c}" for c in ("blue", "red") for n in range(8)]
    table.write_text("\n".join(["path,label", *lines]) + "\n")
    code, _, err = command(f"before={other}", f"after={run}", f"images={photos}",
                           f"labels={table}", "queries=0")  # fmt: skip
    assert code == 0, err
    stored = json.loads((run / "comparison" / "comparison.json").read_text())
    assert stored["images"] == 16


def test_broken_files_are_named_once_and_left_out_and_a_limit_draws(
    run, other, photos, command, caplog
):
    (photos / "red" / "broken.png").write_bytes(b"no image")
    code, _, err = command(f"before={other}", f"after={run}", f"images={photos}", "queries=0")
    assert code == 0 and (err + caplog.text).count("red/broken.png") == 1
    command(f"before={other}", f"after={run}", f"images={photos}", "queries=0", "limit=20")
    stored = json.loads((run / "comparison" / "comparison.json").read_text())
    assert stored["images"] in (19, 20)


def test_plug_ins_are_asked_for_before_images_are_decoded(
    run, photos, command, tiny, stranger, caplog
):
    name, marker = stranger
    file = run / "config.yaml"
    file.write_text(config_to_yaml(tiny()).replace("plugins: []", f"plugins: [{name}]"))
    (photos / "red" / "broken.png").write_bytes(b"no image")
    code, _, err = command(f"after={run}", f"images={photos}", "queries=0")
    assert code == 2 and f"{file} asks for plugins=[{name}]" in err and not marker.exists()
    assert "broken.png" not in err + caplog.text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["images={photos}"], "after: must be given"),
        (["after={run}"], "images: must be given"),
        (["after={run}", "images={photos}"], "before: must be given, .* no folder of a run"),
        (["after={run}", "before=nowhere", "images={photos}"], "before=nowhere: "),
        (["after={run}", "before={run}", "images=nowhere"], "images=nowhere"),
        (["after={run}", "before={run}", "images={photos}", "limit=3"], "limit"),
        (["after={run}", "before={run}", "images={photos}", "folder=/proc/new"],
         "/proc/new: cannot be written"),
        (["after={run}", "before={run}", "images={photos}", "before_size=8"],
         "before_size: is not read with before=.*, only with the name of a network of timm"),
        (["after={run}", "images={photos}", "before_weights=a.safetensors"],
         "before_weights: is not read without before="),
        (["after={run}", "before={run}", "images={photos}/red", "labels=folders"],
         "labels=folders: .* is in no class folder"),
        (["after={run}", "before={run}", "images={photos}", "labels=folders", "limit=12"],
         "labels=folders limit=12: class .* at least 5 are needed"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_said_in_a_line(arguments, says, run, photos, command):
    places = {"run": run, "photos": photos}
    code, _, err = command(*(argument.format(**places) for argument in arguments))
    assert code == 2 and re.search(says, err), err
    assert not (run / "comparison").exists()


def test_a_network_of_timm_is_before(run, photos, command, tmp_path):
    timm = pytest.importorskip("timm", reason="needs the extra timm")
    name, weights = "mobilenetv3_small_050", tmp_path / "mobile.safetensors"
    save_file(timm.create_model(name).state_dict(), weights)
    code, out, err = command(
        f"before={name}", f"before_weights={weights}", "before_size=32", f"after={run}",
        f"images={photos}", "queries=0",
    )  # fmt: skip
    assert code == 0, err
    assert rows(out)[0] == ["score", "before", "after", "difference"]
    assert out.rstrip().endswith("; before_size=16 compares them at the same size")
