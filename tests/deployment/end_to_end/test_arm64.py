"""A client as an aarch64 program, emulated, beside a native one."""

import os
from pathlib import Path

import pytest

from orchestra_flwr import load_encoder

REPOSITORY = Path(__file__).parents[3]
CACHE = Path(os.environ.get("ARM64_CACHE", Path.home() / ".cache/orchestra_flwr/arm64"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(
        os.geteuid() != 0 or not (CACHE / "root/.installed").is_file(),
        reason="needs root, and deploy/arm64.sh to have made its arm64 root before",
    ),
]


def test_an_emulated_board_trains_a_round_with_a_server(machines):
    machines.make_photos(native=24, board=20)
    machines.keys(
        "server", f"folder={machines.security}", "host=127.0.0.1", "client=native,board",
    )  # fmt: skip
    server = machines.server("federation.min_clients=2", "federation.rounds=1")
    server.wait_for("listening on 127.0.0.1")
    native = machines.client("native")
    board = machines.start(
        "env", f"SERVER=127.0.0.1:{machines.port}", REPOSITORY / "deploy/arm64.sh",
        "--data", machines.photos / "board", "--security", machines.security / "bundles/board",
    )  # fmt: skip
    assert server.wait(2000) == 0, server.text + board.text
    assert "client board joined with 20 images" in server.text
    assert "round 1: " in board.text and "round 1: " in native.text
    assert machines.metrics()[-1]["clients"]["ok"] == 2
    assert machines.dropped() == []
    assert load_encoder(machines.run).spec.image_size == 16
    board.end()
    assert board.wait() == 0, board.text
