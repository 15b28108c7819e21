"""Every code block of the guides runs as it is printed, in the order of its guide.

A block that this machine cannot run says what it needs, in a comment that readers of the page do
not see: `<!-- needs: other machines -->`, on the line before it.
"""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from orchestra_flwr.config import ModelConfig
from orchestra_flwr.models import Encoder, EncoderSpec, save_encoder

ROOT = Path(__file__).parents[2]
GUIDES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
NEEDS = {
    "a package index",  # it makes an environment
    "a download",  # of data or weights
    "a login",  # at the Hugging Face hub
    "a GPU",
    "a board",  # its system, as root
    "a SuperLink",  # tests/federation/engines/test_ray.py starts one, and the same command
    "a quiet machine",  # benchmarks: up to an hour
    "Docker",
    "Detectron2",  # tests/export/test_detectron2.py holds names and values against it
    "other machines",
    "a table",  # tests/data/sources/test_image_table.py writes such
    "timm",  # tests/export/test_timm_folder.py has the same lines
    "several terminals",  # tests/deployment/end_to_end/ starts such servers and clients
}
RUN = (
    "orchestra-sim", "orchestra-embed", "orchestra-label", "orchestra-compare", "orchestra-export",
    "orchestra-experiment", "orchestra-evaluate", "orchestra-report",
    "python benchmarks/toy_theory.py",
)  # fmt: skip
SHELL = re.compile(
    r"(?:orchestra-\w+|python3?|uv|UV_\w+=\S+|pip|make|git|sudo|docker|ray|echo|scp|flwr|cd|/usr/\S+|"
    r"/opt/\S+|journalctl)(?: |$)"
)
COLOURS = {"cat": (200, 40, 40), "dog": (40, 60, 200), "fox": (40, 180, 60)}


@dataclass(frozen=True)
class Block:
    """Code as it is printed."""

    guide: str
    line: int
    language: str
    text: str
    needs: str | None

    def __str__(self):
        return f"{self.guide}:{self.line}"

    @property
    def commands(self):
        """Lines of a shell, without comments; a continued line is one."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line.split("  #")[0].strip() for line in lines if line.strip()]

    @property
    def kind(self):
        if self.text.startswith("# my_package/") or "plugins=[my_package]" in self.text:
            return "plug-in"  # tests/test_contributing.py runs these
        if self.language:
            return self.language
        known = [bool(SHELL.match(command)) for command in self.commands]
        assert all(known) or not any(known), f"{self}: commands and other lines in one block"
        return "shell" if all(known) else "text"


def blocks(path):
    """All blocks of a guide: between fences, and indented commands."""
    lines = path.read_text().splitlines()
    number, needs = 0, None
    while number < len(lines):
        line, start = lines[number], number
        if mark := re.fullmatch(r"\s*<!-- needs: (.+) -->", line):
            needs = mark[1]
        elif fence := re.match(r" *```(\w*)$", line):
            number = next(i for i in range(number + 1, len(lines)) if lines[i].strip() == "```")
            yield _block(path, start + 1, fence[1], lines[start + 1 : number], needs)
            needs = None
        elif line.startswith("    ") and not lines[number - 1].strip() and SHELL.match(line[4:]):
            while number + 1 < len(lines) and lines[number + 1].startswith("    "):
                number += 1
            yield _block(path, start, "", lines[start : number + 1], needs)
            needs = None
        elif line.strip():
            assert needs is None, f"{path.name}:{number}: no code follows the mark"
        number += 1


def _block(path, start, language, lines, needs):
    text = textwrap.dedent("\n".join(lines)) + "\n"
    return Block(path.name, start + 1, language, text, needs)


BLOCKS = [block for path in GUIDES for block in blocks(path)]
HERE = [block for block in BLOCKS if block.needs is None]
SHELL_BLOCKS = [block for block in HERE if block.kind == "shell"]
PYTHON_BLOCKS = [block for block in HERE if block.kind == "python"]


def test_what_blocks_need_is_of_a_known_list():
    assert {block.needs for block in BLOCKS} - {None} == NEEDS


def test_a_block_that_is_not_marked_is_one_that_a_test_runs():
    assert {block.kind for block in HERE} == {"shell", "python", "plug-in", "text"}
    for block in SHELL_BLOCKS:
        assert [line for line in block.commands if not line.startswith(RUN)] == [], block
    assert len(SHELL_BLOCKS) > 25 and len(PYTHON_BLOCKS) > 3


def test_no_command_is_called_by_a_name_that_is_only_in_a_checkout():
    for path in GUIDES:
        assert not re.search(r"run_(sim|server|client|experiment)\.py", path.read_text()), path


def write_photographs(folder, images=10):
    """Class folders, half of them for training, and the same as a zip."""
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        for name, colour in COLOURS.items():
            (folder / part / name).mkdir(parents=True)
            for number in range(images * (3 if part == "train" else 1)):
                noise = rng.normal(0, 30, (20, 20, 3))
                pixels = (np.array(colour) + noise).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / part / name / f"{number}.jpg")
    shutil.make_archive(str(folder), "zip", folder)


def write_encoder(folder):
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    spec = EncoderSpec(model=ModelConfig(name="convnet", width=8), channels=3, image_size=16)
    save_encoder(folder / "encoder.safetensors", Encoder(spec))
    return folder


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with all that the guides speak of, in which their code runs."""
    monkeypatch.chdir(tmp_path)
    write_photographs(tmp_path / "photos")
    for name in ("others", "cifar10", "cifar10-jpeg"):
        shutil.copy(tmp_path / "photos.zip", tmp_path / f"{name}.zip")
    shutil.copy(tmp_path / "photos" / "train" / "cat" / "0.jpg", tmp_path / "photo.jpg")
    rows = [f"train/{c}/{n}.jpg,{c}" for c in COLOURS for n in range(10)]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    images = sorted(path.relative_to("photos") for path in Path("photos").rglob("*.jpg"))
    days = [f"{path},{('monday', 'tuesday')[n % 2]}" for n, path in enumerate(images)]
    (tmp_path / "sessions.csv").write_text("\n".join(["file,group", *days]) + "\n")
    rows = [f"{client},120,20,5,22.5,8" for client in range(10)]
    columns = "client,images_per_second,down_mbit,up_mbit,leaves,hours_away"
    (tmp_path / "devices.csv").write_text("\n".join([columns, *rows]) + "\n")
    write_encoder(tmp_path / "outputs" / "other-run")
    return tmp_path


@pytest.fixture
def encoder(place):
    """A saved encoder, as a run leaves it, without the run."""
    return write_encoder(place / "outputs" / "my-run")


@pytest.mark.parametrize("block", PYTHON_BLOCKS, ids=str)
def test_python(block, encoder):
    """After the commands of the guide that write the files which it reads."""
    from orchestra_flwr import cli

    if "embeddings.safetensors" in block.text:
        assert cli.embed_main(["run=outputs/my-run", "images=photos.zip", "page.write=false"]) == 0
    if "onnxruntime" in block.text:
        pytest.importorskip("onnxruntime", reason="needs the extra onnx")
        assert cli.export_main(["run=outputs/my-run"]) == 0
    exec(compile(block.text, str(block), "exec"), {})  # noqa: S102


@pytest.fixture
def bin_folder(tmp_path):
    """The names of the commands; what they start is made small."""
    folder = tmp_path / "bin"
    folder.mkdir()
    small = Path(__file__).with_name("small_command.py")
    for name in ("python", *{words.split()[0] for words in RUN}):
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" "{small}" {name} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def shell(block, folder, bin_folder):
    """Runs a block in bash; returns nothing, or what it said when it failed."""
    if "model=timm" in block.text:
        pytest.importorskip("timm", reason="needs the extra timm")
    done = subprocess.run(
        ["bash", "-eu", "-c", block.text], cwd=folder, capture_output=True, text=True, check=False,
        env={
            **os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        },
    )  # fmt: skip
    return None if done.returncode == 0 else f"{block}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


# Commands of a guide go on from what those before them have left.
GUIDES_WITH_COMMANDS = sorted({block.guide for block in SHELL_BLOCKS})


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("guide", GUIDES_WITH_COMMANDS)
def test_commands(guide, place, bin_folder):
    printed = [block for block in SHELL_BLOCKS if block.guide == guide]
    if guide != "README.md" and any("outputs/my-run" in block.text for block in printed):
        (made,) = [block for block in SHELL_BLOCKS if "run_dir=outputs/my-run" in block.text]
        printed.insert(0, made)  # README's first run is the one that other guides go on from
    failed = [shell(block, place, bin_folder) for block in printed]
    assert not any(failed), "\n\n".join(filter(None, failed))
