"""Seconds of a round between real processes when nobody trains: what communication costs.

    python benchmarks/deployment_round.py

A server and two clients on this machine, as run_server.py and run_client.py start them; the clients
send back at once what they received. What is left is Flower's polling, the network stack, TLS, and
our packing, checks and averages.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import RESULTS, free_port

RESULT = RESULTS / "deployment_round.json"
ROOT = Path(__file__).parents[1]
MODELS = {
    "convnet, width 8": ["model=convnet", "model.width=8", "model.projector_dim=16"],
    "resnet18": ["model=resnet18"],
}


def idle_client() -> None:
    """`run_client.py` with a trainer that does not train."""
    import numpy as np
    from flwr.app import ConfigRecord, MetricRecord, RecordDict

    from orchestra_flwr import cli
    from orchestra_flwr.deployment.client_work import client_worker
    from orchestra_flwr.deployment.processes import client_process
    from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG, METRICS
    from orchestra_flwr.flower.arrays import to_record

    class Idle(client_worker.ClientWorker):
        def train(self, content: RecordDict) -> RecordDict:
            task = content.config_records[CONFIG]
            received = content.array_records[ARRAYS]
            width = received["server"].shape[-1] // self._clusters(task)
            rows = np.full((2, width), width**-0.5, np.float32)  # of length 1
            arrays = {"local_centroids": rows}
            if task["train"]:
                arrays["shared"] = received["shared"].numpy()
            return RecordDict(
                {
                    ARRAYS: to_record(arrays),
                    METRICS: MetricRecord({"examples": 16, "seconds": 0.0, "steps": 0}),
                    CONFIG: ConfigRecord({"schema": str(task["schema"])}),
                }
            )

        @staticmethod
        def _clusters(task: ConfigRecord) -> int:
            return int(json.loads(str(task["config"]))["clustering"]["global_clusters"])

    client_process.ClientWorker = Idle
    sys.exit(cli.client_main())


def measure(folder: Path, name: str, model: list[str], rounds: int, tls: bool) -> dict:
    """One federation; its rounds' seconds and bytes."""
    port, security = free_port(), folder / ("security" if tls else "none")
    run = folder / f"{len(list(folder.iterdir()))}"
    server = subprocess.Popen(
        [sys.executable, "run_server.py", f"port={port}", f"security={security}", *model,
         f"federation.rounds={rounds}", "federation.min_images=1", "data.image_size=16",
         "clustering.global_clusters=4", "clustering.local_clusters=2", "logging.progress=plain",
         "device=cpu", f"run_dir={run}"],
        cwd=ROOT,
    )  # fmt: skip
    clients = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--client", f"server=localhost:{port}",
             *([f"security={security / 'bundles' / c}"] if tls else [f"name={c}", "security=none"]),
             f"data.root={folder / 'photos'}", f"state={run}-state", "device=cpu"],
            cwd=ROOT, stdout=subprocess.DEVNULL,
        )
        for c in "ab"
    ]  # fmt: skip
    try:
        if server.wait():
            raise SystemExit(f"{name}: the federation failed")
    finally:
        for client in clients:
            client.terminate()
            client.wait()
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = records[1:]
    seconds = [record["seconds"] for record in trained]
    return {
        "model": name,
        "tls": tls,
        "mb_down_a_client": trained[-1]["bytes_down"] / 2e6,
        "seconds": statistics.median(seconds),
        "all_seconds": seconds,
    }


def make_inputs(folder: Path) -> None:
    """A few images, and keys for a server and two clients."""
    import numpy as np
    from PIL import Image

    (folder / "photos").mkdir()
    rng = np.random.default_rng(0)
    for i in range(16):
        pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{i}.png")
    subprocess.run(
        [sys.executable, "-m", "orchestra_flwr.deployment.keys", "server",
         f"folder={folder / 'security'}", "host=localhost", "client=a,b"],
        check=True, cwd=ROOT, stdout=subprocess.DEVNULL,
    )  # fmt: skip


def main() -> None:
    """Measures all, prints a table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--output", type=Path, default=RESULT)
    arguments = parser.parse_args()
    from orchestra_flwr.reporting import environment

    with tempfile.TemporaryDirectory(prefix="orch") as temporary:
        folder = Path(temporary)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        make_inputs(folder)
        results = [
            measure(folder, name, model, arguments.rounds, tls)
            for name, model in MODELS.items()
            for tls in (False, True)
        ]
    print("\n| model | MB down a client | TLS | seconds a round (median) |\n|---|---|---|---|")
    for one in results:
        tls = "yes" if one["tls"] else "no"
        print(f"| {one['model']} | {one['mb_down_a_client']:.1f} | {tls} | {one['seconds']:.1f} |")
    measured_on = {"measured": time.strftime("%Y-%m-%d"), "load": os.getloadavg(), **environment()}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(
        json.dumps({"environment": measured_on, "results": results}, indent=2)
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        del sys.argv[1]
        idle_client()
    else:
        main()
