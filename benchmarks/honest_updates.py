"""How far honest clients are from one another: what federation.max_update must let through.

    python benchmarks/honest_updates.py

Federations that make updates as unequal as honest ones can be: one class for each client, one
client with 175 times as many images as the others, clients whose pictures are all white or all
black; by several methods, and with learning rates above the usual ones. The figure is the largest
norm of an update in a round, divided by the median of the round; no reply may be dropped.
"""

import tempfile
from pathlib import Path

import numpy as np
from common import table, write
from PIL import Image
from sklearn.datasets import load_digits

from orchestra_flwr import simulate

ROUNDS = 3
COMMON = [
    "data=image_folder", "data.image_size=8", "partition=by_class", "engine=inline", "device=cpu",
    f"federation.rounds={ROUNDS}", "model.width=16", "training.local_epochs=10",
    f"evaluation.every={ROUNDS + 1}", "logging.progress=off",
]  # fmt: skip
METHODS = {
    "orchestra": ["method=orchestra"],
    "orchestra, Adam at the server": ["method=orchestra", "server_optimizer=adam"],
    "simclr, lr .1": ["method=simclr", "training.lr=0.1"],
    "byol, Adam": ["method=byol", "optimizer=adam"],
    "supervised, lr .1": ["method=supervised", "training.lr=0.1"],
}


def populations() -> dict[str, dict[str, np.ndarray]]:
    """(n, 8, 8) uint8 images of each client, by population."""
    images, classes = load_digits(return_X_y=True)
    images = np.round(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    others = {f"digits {i}": images[i * 100 : i * 100 + 100] for i in range(4)}
    plain = {name: np.full((100, 8, 8), v, np.uint8) for name, v in (("black", 0), ("white", 255))}
    few = {f"few {i}": images[1400 + 8 * i : 1408 + 8 * i] for i in range(5)}
    return {
        "one class each": {str(k): images[classes == k][:60] for k in range(10)},
        "1,400 images and 8": {"many": images[:1400], **few},
        "white, black and digits": {**others, **plain},
    }


def save(folder: Path, clients: dict[str, np.ndarray]) -> None:
    for name, images in clients.items():
        (folder / name).mkdir(parents=True)
        for number, image in enumerate(images):
            Image.fromarray(image).convert("RGB").save(folder / name / f"{number:04}.png")


def measured(folder: Path, root: Path, clients: int, method: list[str]) -> dict[str, float]:
    """The largest ratio in all rounds, of weights and of statistics, and the replies dropped."""
    overrides = [f"data.root={root}", f"federation.clients={clients}", f"run_dir={folder}"]
    result = simulate([*COMMON, *overrides, *method])
    records = [round_.record for round_ in result.metrics if "moved" in round_.record]
    ratios = {
        kind: max(r["moved"][kind]["largest"] / r["moved"][kind]["median"] for r in records)
        for kind in ("weights", "statistics")
    }
    return {**ratios, "dropped": sum(len(r["clients"]["dropped"]) for r in records)}


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for population, clients in populations().items():
            root = Path(name) / population
            save(root, clients)
            for method, overrides in METHODS.items():
                folder = Path(name) / f"run {len(rows)}"
                figures = measured(folder, root, len(clients), overrides)
                rows.append({"population": population, "method": method, **figures})
                print(rows[-1], flush=True)
    shown = ("population", "method", "weights", "statistics", "dropped")
    table(shown, [tuple(f"{row[k]:.3g}" if k in shown[2:] else row[k] for k in shown)
                  for row in rows])  # fmt: skip
    largest = {kind: max(row[kind] for row in rows) for kind in ("weights", "statistics")}
    write("honest_updates", {"largest": largest, "rows": rows})


if __name__ == "__main__":
    main()
