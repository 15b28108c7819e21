"""`orchestra-embed` as a person calls it."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from orchestra_flwr import extras
from orchestra_flwr.cli import embed_main
from orchestra_flwr.folder_lock import locked
from orchestra_flwr.use import embed_command


@pytest.fixture
def command(capsys):
    def call(*arguments):
        code = embed_main(["device=cpu", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_embeddings_their_description_and_the_page(run, photos, command):
    (photos / "red" / "x.jpg").write_bytes(b"no image")
    code, out, err = command(f"run={run}", f"images={photos}")
    assert code == 0 and "embedded 37 of 37 images" in err
    folder = run / "embeddings" / "photos"
    assert {p.name for p in folder.iterdir()} == {
        ".lock", "embeddings.safetensors", "embeddings.json", "embeddings.html",
    }  # fmt: skip
    assert "36 images" in out and "red/x.jpg: not an image" in out
    assert f"page: {folder / 'embeddings.html'}" in out
    described = json.loads((folder / "embeddings.json").read_text())
    assert (described["count"], described["broken"]) == (36, [["red/x.jpg", "not an image"]])
    vectors = load_file(folder / "embeddings.safetensors")["embeddings"]
    assert vectors.shape == (36, described["dim"])


def test_near_duplicates_are_counted_and_named(run, photos, command):
    arguments, folder = (f"run={run}", f"images={photos}"), run / "embeddings" / "photos"
    assert "near-duplicates on the page: none\n" in command(*arguments)[1]
    shutil.copy(photos / "red" / "03.png", photos / "copy.png")
    line = "near-duplicates on the page: 2 images in 1 group, named in embeddings.json\n"
    assert line in command(*arguments)[1]
    groups = json.loads((folder / "embeddings.json").read_text())["near_duplicates"]
    assert groups == [["copy.png", "red/03.png"]]
    out, err = command(*arguments)[1:]  # they are no reason to embed again
    assert line in out and "embedded" not in err


def test_what_is_there_is_not_made_again(run, photos, command, monkeypatch):
    arguments = (f"run={run}", f"images={photos}", "page.write=false", "format=npz")
    assert command(*arguments)[0] == 0

    def never(*_, **__):
        raise AssertionError

    with monkeypatch.context() as patched:
        patched.setattr(embed_command, "embed", never)
        assert command(*arguments)[0] == 0
    (photos / "red" / "00.png").unlink()  # other images: made again
    code, out, _ = command(*arguments)
    assert code == 0 and "35 images" in out


def test_an_image_that_could_not_be_read_is_embedded_once_it_can_be(
    run, photos, command, unreadable
):
    arguments = (f"run={run}", f"images={photos}", "page.write=false")
    with unreadable("red/01.png") as patched:
        assert "35 images" in command(*arguments)[1]
        patched.setattr(embed_command, "embed", None)  # it is not called while nothing changes
        assert "red/01.png: Permission denied\n" in command(*arguments)[1]
    code, out, _ = command(*arguments)
    assert code == 0 and "36 images" in out and "left out" not in out


def test_a_photograph_with_damaged_exif_data_is_embedded_quietly(run, tmp_path, command, recwarn):
    """Pillow warns about it, with a line of its own source."""
    (tmp_path / "photos").mkdir()
    photo = io.BytesIO()
    Image.new("RGB", (32, 32)).save(photo, "jpeg", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    (tmp_path / "photos" / "1.jpg").write_bytes(photo.getvalue())
    code, out, _ = command(f"run={run}", f"images={tmp_path / 'photos'}", "page.write=false")
    assert code == 0 and "(1 image," in out
    assert not [warning for warning in recwarn if "EXIF" in str(warning.message)]


def test_two_folders_of_one_name_do_not_replace_each_other(run, photos, command, tmp_path):
    arguments = (f"run={run}", "page.write=false")
    assert command(*arguments, f"images={photos}")[0] == 0
    other = tmp_path / "other" / "photos"
    other.parent.mkdir()
    photos.rename(other)
    (other / "red" / "00.png").unlink()
    assert command(*arguments, f"images={other}")[0] == 0  # they were moved
    shutil.copytree(other, photos)
    (photos / "red" / "01.png").unlink()
    code, _, err = command(*arguments, f"images={photos}")
    assert code == 2 and f"holds the results of {other}; folder= names another place" in err
    assert command(*arguments, f"images={photos}", f"folder={tmp_path / 'here'}")[0] == 0


def test_images_of_equal_names_sizes_and_times_have_vectors_of_their_own(run, command, tmp_path):
    """Results that are there are of the images before, which are there no more."""
    embeddings = []
    for shade in (0, 200):
        for number in range(3):
            file = tmp_path / "photos" / f"{number}.bmp"
            file.parent.mkdir(exist_ok=True)
            Image.new("RGB", (16, 16), (shade, 90, 10 * number)).save(file)
            os.utime(file, (1_700_000_000, 1_700_000_000))
        arguments = (f"run={run}", f"images={file.parent}", "page.write=false")
        assert command(*arguments)[0] == 0
        results = run / "embeddings" / "photos" / "embeddings.safetensors"
        embeddings.append(load_file(results)["embeddings"])
    assert not torch.equal(*embeddings)


def test_a_folder_is_the_same_however_it_is_written(run, photos, command, tmp_path, monkeypatch):
    """Typed within it, from its parent, or elsewhere, where another one has its name."""
    arguments = (f"run={run}", "page.write=false")
    monkeypatch.chdir(photos)
    assert command(*arguments, "images=.")[0] == 0
    (photos / "red" / "00.png").unlink()
    monkeypatch.chdir(photos.parent)
    assert command(*arguments, "images=photos")[0] == 0
    other = tmp_path / "other" / "photos"
    shutil.copytree(photos, other)
    (other / "red" / "01.png").unlink()
    monkeypatch.chdir(other.parent)
    code, _, err = command(*arguments, "images=photos")
    assert code == 2 and f"holds the results of {photos}; folder= names another place" in err


def test_pictures_of_the_page_are_no_images(run, photos, command):
    """Results may lie among the images, but not be their folder."""
    arguments = (f"run={run}", f"images={photos}", "page.pictures=beside")
    for _ in range(2):
        code, out, _ = command(*arguments, f"folder={photos / 'results'}")
        assert code == 0 and "36 images" in out
    assert list((photos / "results").glob("pictures-*.webp"))
    code, _, err = command(*arguments, f"folder={photos}")
    assert code == 2 and err.startswith(
        f"error: folder={photos}: holds all of images={photos}; must be another"
    )
    assert not list(photos.glob("pictures-*.webp"))


def test_more_names_than_a_format_holds_are_told_before_the_work(run, photos, command, monkeypatch):
    monkeypatch.setattr("orchestra_flwr.use.embedding_files.MAX_NAMES_SIZE", 500)
    monkeypatch.setattr(embed_command, "embed", None)  # it is not called
    code, _, err = command(f"run={run}", f"images={photos}")
    assert code == 2 and "format=safetensors: the names of 36 images take" in err
    assert err.rstrip().endswith("give format=npz or format=parquet")


def test_a_format_without_its_library_says_what_to_install(run, photos, command, monkeypatch):
    there = extras.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda n: None if n == "pyarrow" else there(n))
    monkeypatch.setattr(embed_command, "embed", None)  # it is not called
    code, _, err = command(f"run={run}", f"images={photos}", "format=parquet")
    assert code == 2 and "format=parquet: pyarrow is not installed" in err
    assert "pip install 'orchestra-flwr[parquet]'" in err


def test_years_and_encoders_have_results_of_their_own(run, photos, command):
    year = photos.rename(photos.with_name("photos.2023"))
    encoder = run / "model_1.safetensors"
    for suffix in (".safetensors", ".json"):
        (run / f"encoder{suffix}").rename(encoder.with_suffix(suffix))
    assert command(f"run={encoder}", f"images={year}", "page.write=false")[0] == 0
    assert (run / "model_1-embeddings" / "photos.2023" / "embeddings.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "run: must be given"),
        (["run={run}"], "images: must be given"),
        (["run=none", "images={photos}"], "run=none: none/encoder.safetensors: no such file"),
        (["run={run}", "images=none"], "images=none: does not exist, as seen"),
        (["run={run}", "images=~nobody-of-this-name/x"], "images=~nobody-of-this-name/x: does not"),
        (["run=~nobody-of-this-name/x", "images={photos}"], "run=~nobody-of-this-name/x: "),
        (["run={run}", "images={run}"], "holds no images"),
        (["run={run}", "images={photos}", "folder={photos}"], "holds all of images="),
        (["run={run}", "images={photos}", "format=csv"], "format=csv"),
        (["run={run}", "images={photos}", "page.clusters=99"], "page.clusters=99"),
        (["run={run}", "images={photos}", "pages=1"], "pages: unknown key"),
        (
            ["run={run}", "images={photos}", "page.write=false", "page.limit=9"],
            "page.limit: is not read with page.write=false",
        ),
    ],
)
def test_what_is_wrong_is_one_line(run, photos, command, arguments, error, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, out, err = command(*(a.format(run=run, photos=photos) for a in arguments))
    assert code == 2 and out == "" and err.count("\n") == 1
    assert error in err
    assert not (run / "embeddings").exists() and not (photos / ".lock").exists()


def test_a_folder_belongs_to_one_process(run, photos, command):
    folder = run / "embeddings" / "photos"
    folder.mkdir(parents=True)
    with locked(folder):
        code, _, err = command(f"run={run}", f"images={photos}")
    assert code == 2 and f"is in use by process {os.getpid()}" in err


def test_damaged_weights_are_refused(run, photos, command):
    file = run / "encoder.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    code, _, err = command(f"run={run}", f"images={photos}")
    assert code == 2 and "is damaged" in err


@pytest.mark.slow
def test_a_killed_process_goes_on(run, photos, tmp_path):
    """SIGTERM in the middle: exit code 143, and the same command ends with the same bytes."""
    for copy in range(60):
        for file in sorted(photos.glob("red/??.png")):
            (photos / "red" / f"{file.stem}-{copy}.png").write_bytes(file.read_bytes())
    arguments = [
        Path(sys.executable).with_name("orchestra-embed"), f"run={run}", f"images={photos}",
        "device=cpu", "page.write=false",
    ]  # fmt: skip
    folder = tmp_path / "results"
    process = subprocess.Popen([*arguments, f"folder={folder}"])
    while process.poll() is None and not [*folder.glob("unfinished/*.safetensors")]:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait() in (143, 0)  # 0: it was faster than the signal
    assert subprocess.run([*arguments, f"folder={folder}"], check=False).returncode == 0
    assert subprocess.run([*arguments, f"folder={tmp_path / 'whole'}"], check=False).returncode == 0
    again, whole = (
        load_file(f / "embeddings.safetensors")["embeddings"] for f in (folder, tmp_path / "whole")
    )
    assert torch.equal(again, whole) and not (folder / "unfinished").exists()


def test_a_strangers_encoder_imports_only_packages_that_the_command_names(
    run, photos, command, stranger
):
    name, marker = stranger
    file = run / "encoder.json"
    described = json.loads(file.read_text())
    del described["sha256"], described["weights_sha256"]
    described["spec"]["plugins"] = [name]
    file.write_text(json.dumps(described))
    arguments = (f"run={run}", f"images={photos}", "page.write=false")
    code, _, err = command(*arguments)
    assert code == 2 and f"{file} asks for plugins=[{name}]" in err and not marker.exists()
    assert command(*arguments, f"plugins=[{name}]")[0] == 0 and marker.exists()
