import os
import subprocess
import sys

import pytest
import torch

from orchestra_flwr.training import torch_threads


def test_the_number_of_threads_is_as_before_after_the_block():
    before = torch.get_num_threads()
    with torch_threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_waiting_threads_sleep():
    """Spinning ones made everything several times as long on a busy machine."""
    done = subprocess.run(
        [sys.executable, "-c", "import orchestra_flwr.training"],
        env={**os.environ, "OMP_DISPLAY_ENV": "true"},
        capture_output=True,
        text=True,
        check=True,
    )
    if "OMP_WAIT_POLICY" not in done.stderr:
        pytest.skip("this torch has no OpenMP that prints its settings")
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in done.stderr
