"""Seconds of a whole run, from the command to its summary: ours beside the published recipe.

    python benchmarks/whole_run.py
    python benchmarks/whole_run.py --rounds 1 --width 8 --photographs 400      # a trial

ResNet-18 on 2,000 photographs and 500 for testing, JPEG files: 10 clients, 5 of them a round, one
local epoch in batches of 16, the first clustering and 2 rounds. Both sides are processes of their
own that take turns; ours is `run_sim.py` on Ray, the other `published_run.py`. Both evaluate alike:
kNN of one backbone after the first clustering and each round (`knn_run.py`). Ours writes
checkpoints besides.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from common import bfloat16_is_fast, table, write
from PIL import Image
from published import client_images

from orchestra_flwr.config import load_config
from orchestra_flwr.reporting import RunFolder

HERE = Path(__file__).parent
CLASSES = 10
BFLOAT16 = ("training.precision=bfloat16", "evaluation.precision=bfloat16")


def write_photographs(folder: Path, count: int) -> None:
    """So many smooth random images for training and a quarter as many for testing."""
    config = load_config(["data=cifar10", "data.root=."])
    for part, size, seed in (("train", count, 0), ("test", count // 4, 1)):
        images = client_images(config.model_copy(update={"seed": seed}), size)
        for index, image in enumerate(images):
            file = folder / part / str(index % CLASSES) / f"{index:05}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, quality=75)


def overrides(given: argparse.Namespace, photos: Path) -> list[str]:
    return [
        "data=image_folder", f"data.root={photos}", "partition=iid", "device=cpu",
        "model=resnet18", f"model.width={given.width}", "federation.clients=10",
        "federation.participation=0.5", f"federation.rounds={given.rounds}",
        "training.batch_size=16", "training.local_epochs=1", "training.lr=0.003",
        "training.drop_last=true", "evaluation.every=1", "clustering.local_clusters=8",
        "clustering.memory=128",
    ]  # fmt: skip


def ours(given: argparse.Namespace, photos: Path, extra: tuple[str, ...] = ()) -> dict[str, float]:
    """Seconds of the whole run, of its rounds alone, and of the first of all."""
    folder = Path(tempfile.mkdtemp(dir=photos.parent))
    command = [sys.executable, HERE / "knn_run.py", *overrides(given, photos), *extra]
    seconds = timed([*command, f"run_dir={folder / 'run'}", f"engine={given.engine}"])
    records = RunFolder(folder / "run").read_metrics()
    return {
        "seconds": seconds,
        "rounds": sum(record["seconds"] for record in records),
        "knn": records[-1]["scores"]["target"]["knn"],
    }


def published(given: argparse.Namespace, photos: Path) -> dict[str, float]:
    """Seconds of the whole run."""
    result = photos.parent / "published.json"
    command = [sys.executable, HERE / "published_run.py", photos, result]
    seconds = timed([*command, *overrides(given, photos)])
    return {"seconds": seconds, "knn": json.loads(result.read_text())["knn"][-1]}


def timed(command: list[str | Path]) -> float:
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command[1]} failed:\n{done.stdout}{done.stderr}")
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=1, help="of each side; the median counts")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--photographs", type=int, default=2000)
    parser.add_argument("--engine", default="ray")
    given = parser.parse_args()
    sides: dict[str, Callable[[Path], dict[str, float]]] = {
        "published": lambda photos: published(given, photos),
        "float32": lambda photos: ours(given, photos),
    }
    if bfloat16_is_fast():
        sides["bfloat16"] = lambda photos: ours(given, photos, BFLOAT16)
    results: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory(prefix="whole", ignore_cleanup_errors=True) as folder:
        photos = Path(folder) / "photos"
        write_photographs(photos, given.photographs)
        # Nothing that an earlier run has decoded; and short paths, which Ray's sockets need.
        os.environ |= {"XDG_CACHE_HOME": f"{folder}/cache", "RAY_TMPDIR": folder}
        for _ in range(given.repeats):
            for name, side in sides.items():
                results[name].append(side(photos))
    seconds = {
        name: statistics.median(one["seconds"] for one in runs) for name, runs in results.items()
    }
    ratios = {name: seconds["published"] / duration for name, duration in seconds.items()}
    table(
        ("side", "s", "of them in rounds", "ratio"),
        [
            (name, f"{duration:.1f}", f"{results[name][0].get('rounds', float('nan')):.1f}",
             f"{ratios[name]:.2f}")
            for name, duration in seconds.items()
        ],
    )  # fmt: skip
    write(
        "whole_run",
        {
            **{key: getattr(given, key) for key in ("rounds", "width", "photographs", "engine")},
            "seconds": seconds,
            "runs": results,
            "whole_fp32_ratio": ratios["float32"],
            "whole_bf16_ratio": ratios.get("bfloat16"),
        },
    )


if __name__ == "__main__":
    main()
