import platform
import subprocess
import sys

import pytest

from orchestra_flwr.process_memory import used_memory

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc has the settings"
)

# In a process of its own: what malloc does depends on all that was allocated before.
BEGIN = """
import resource
from pathlib import Path
import numpy as np
from orchestra_flwr.process_memory import keep_freed_memory, return_freed_memory

def step():
    activations = [np.ones(500_000) for _ in range(20)]  # 80 MB

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

"""


def printed(program: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


# Each number needs a process that imports torch: seconds.
STEPS = "step(); step()\nbefore = faults()\nfor _ in range(5): step()\nprint(faults() - before)"


@pytest.mark.slow
def test_kept_memory_is_not_fetched_again():
    assert printed("keep_freed_memory()\n" + STEPS) < 1000 < printed(STEPS)


@pytest.mark.slow
def test_freed_memory_goes_back_to_the_system():
    program = """
keep_freed_memory()
base = resident()
step()
kept = resident() - base
return_freed_memory()
print(int(kept > 70e6 and resident() - base < 10e6))
"""
    assert printed(program) == 1


@pytest.mark.slow
def test_pieces_below_used_memory_go_back_too():
    program = """
blocks = [np.ones(12_500) for _ in range(400)]  # 40 MB in pieces that glibc keeps
last = blocks.pop()  # memory above it in the heap would be returned anyway
del blocks
before = resident()
return_freed_memory()
print(before - resident())
"""
    assert printed(program) > 20e6


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_memory_is_that_of_a_process_and_of_all_that_it_has_started():
    """As an engine's workers, whose pages are not this process's."""
    before = used_memory()
    hold = "import sys; held = b'x' * 200_000_000; print('held', flush=True); sys.stdin.read()"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}])"
    outer = subprocess.Popen(
        [sys.executable, "-c", nested], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert outer.stdout.readline() == b"held\n"
    during = used_memory()
    outer.communicate()
    assert 190e6 < during - before < 300e6
    assert used_memory(outer.pid) == 0  # it has ended
