"""Seconds of a round between real processes when nobody trains: what communication costs.

    python benchmarks/deployment_round.py

A server and two clients on this machine, as run_server.py and run_client.py start them; the clients
send back at once what they received. What is left is Flower's polling, the network stack, TLS, and
our packing, checks and averages.
"""

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from common import free_port, run_client, table, write
from faults.federation import make_keys, make_photos
from faults.processes import Command
from many_clients import Server

from orchestra_flwr.reporting import RunFolder

MODELS = {
    "convnet, width 8": ["model=convnet", "model.width=8", "model.projector_dim=16"],
    "resnet18": ["model=resnet18"],
}


def measure(folder: Path, name: str, model: list[str], rounds: int, tls: bool) -> dict:
    """One federation; its rounds' seconds and bytes."""
    port, security = free_port(), folder / "security"
    run = folder / f"{len(list(folder.iterdir()))}"
    server = Server(
        run, port, f"security={security}" if tls else "insecure=true",
        *model, f"federation.rounds={rounds}",
        "federation.min_images=1", "data.image_size=16", "clustering.global_clusters=4",
        "clustering.local_clusters=2", "logging.progress=plain", "device=cpu",
    )  # fmt: skip
    clients = [
        Command(
            [Path(__file__).resolve(), "--client", f"server=127.0.0.1:{port}",
             *([f"security={security / 'bundles' / c}"] if tls else [f"name={c}", "insecure=true"]),
             f"data.root={folder / 'photos'}", f"state={run}-state", "device=cpu"],
            run.with_name(f"{run.name}-{c}.log"), {},
        )
        for c in "ab"
    ]  # fmt: skip
    try:
        if server.process.wait():
            raise SystemExit(f"{name}: the federation failed:\n{server.log.read_text()}")
    finally:
        for client in clients:
            client.end()
    trained = RunFolder(run).read_metrics()[1:]
    seconds = [record["seconds"] for record in trained]
    return {
        "model": name,
        "tls": tls,
        "mb_down_a_client": trained[-1]["bytes_down"] / 2e6,
        "seconds": statistics.median(seconds),
        "all_seconds": seconds,
    }


def main() -> None:
    """Measures all, prints a table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="orch") as temporary:
        folder = Path(temporary)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        make_photos(folder, {"photos": 16})
        make_keys(folder / "security", "client=a,b")
        results = [
            measure(folder, name, model, arguments.rounds, tls)
            for name, model in MODELS.items()
            for tls in (False, True)
        ]
    table(
        ("model", "MB down a client", "TLS", "seconds a round (median)"),
        [(one["model"], f"{one['mb_down_a_client']:.1f}", "yes" if one["tls"] else "no",
          f"{one['seconds']:.1f}") for one in results],
    )  # fmt: skip
    write("deployment_round", {"results": results}, arguments.output)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        from idle_clients import give_back

        del sys.argv[1]
        run_client(lambda usual, content: give_back(content))
    else:
        main()
