"""Nobody may be there to read, or to read on, and the work goes on."""

import os
import subprocess
import sys
import textwrap
import time

import pytest

from orchestra_flwr.console.output_streams import ignore_closed_streams

WORK = """
import sys
from orchestra_flwr.console.output_streams import ignore_closed_streams

ignore_closed_streams()
for number in range(3):
    print("line", number, flush=True)
    print("error", number, file=sys.stderr)
opened = open(sys.argv[1], "w")
assert opened.fileno() > 2
print("x" * 100_000)
opened.write("all done")
opened.close()
sys.exit(7)
"""


@pytest.fixture
def work(tmp_path):
    """The command of a program whose work ends with code 7 and a file."""
    yield [sys.executable, "-c", textwrap.dedent(WORK), str(tmp_path / "file")]
    assert (tmp_path / "file").read_text() == "all done"


def test_what_is_read_is_written(work):
    done = subprocess.run(work, capture_output=True, text=True, check=False)
    assert done.returncode == 7
    assert done.stdout == "line 0\nline 1\nline 2\n" + "x" * 100_000 + "\n"
    assert done.stderr == "error 0\nerror 1\nerror 2\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_pipe_that_ends(work, stream, unbuffered):
    reading, writing = os.pipe()
    os.close(reading)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | {stream: writing}
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(work, **pipes, text=True, check=False, env=environment)
    os.close(writing)
    assert done.returncode == 7
    other = done.stdout if stream == "stderr" else done.stderr
    assert other.count("\n") in (3, 4) and "warning" not in other


@pytest.mark.parametrize(
    "closed", ["<&- >&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-", ">&- 2>/dev/full"]
)
def test_streams_that_are_closed_from_the_start(work, closed):
    command = ["sh", "-c", f'"$@" {closed}', "sh", *work]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 7
    assert "Traceback" not in done.stdout + done.stderr


def test_a_terminal_that_is_closed(work):
    terminal, end = os.openpty()
    program = "import os, signal; os.kill(os.getpid(), signal.SIGHUP)\n"
    work[2] = work[2].replace("for number", f"{program}for number")
    with subprocess.Popen(work, stdin=end, stdout=end, stderr=end) as process:
        os.close(end)
        os.close(terminal)
    assert process.returncode == 7


def test_a_full_disk_below_the_output_is_said_once(work):
    command = ["sh", "-c", '"$@" >/dev/full', "sh", *work]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 7
    warning = "warning: lines of the output are lost: No space left on device"
    assert done.stderr.splitlines().count(warning) == 1


ROOM_AGAIN = """
import os, resource
from orchestra_flwr.console.output_streams import ignore_closed_streams

def most(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

ignore_closed_streams()
print("before", flush=True)
most(os.fstat(1).st_size)
print("lost", flush=True)
most(resource.RLIM_INFINITY)
print("after", flush=True)
"""


def test_the_output_goes_on_when_the_disk_has_room_again(tmp_path):
    with (tmp_path / "log").open("w") as log:
        command = [sys.executable, "-c", ROOM_AGAIN]
        done = subprocess.run(command, stdout=log, stderr=subprocess.PIPE, text=True, check=True)
    assert (tmp_path / "log").read_text() == "before\nafter\n"
    assert done.stderr == "warning: lines of the output are lost: File too large\n"


def test_a_slow_reader_of_a_pipe_that_does_not_wait(work):
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with subprocess.Popen(work, stdout=writing, stderr=subprocess.DEVNULL) as process:
        os.close(writing)
        with os.fdopen(reading) as file:
            assert file.read().endswith("x" * 100_000 + "\n")
    assert process.returncode == 7


def test_streams_in_the_place_of_the_process_own_are_left_alone(capsys):
    before = sys.stdout, sys.stderr
    ignore_closed_streams()
    assert (sys.stdout, sys.stderr) == before


NOBODY_READS = """
import sys
from orchestra_flwr.console import output_streams

output_streams.MAX_WAITING = 100
output_streams.ignore_closed_streams()
output_streams.never_wait_for_readers()
for number in range(20_000):
    print("line", number, flush=True)
open(sys.argv[1], "w").write("all done")
print("last", file=sys.stderr)
sys.exit(7)
"""


@pytest.fixture
def unread(work):
    """The command of a program that prints more than a pipe and its own lines that wait hold."""
    return [*work[:2], textwrap.dedent(NOBODY_READS), *work[3:]]


def test_a_reader_that_hangs_holds_up_nothing(unread):
    with subprocess.Popen(unread, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.wait(timeout=30) == 7
        assert process.stdout.read().startswith(b"line 0\nline 1\n")


def test_lines_that_a_slow_reader_missed_are_counted(unread, tmp_path):
    with subprocess.Popen(unread, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        while not (tmp_path / "file").exists():
            time.sleep(0.01)
        lines = process.stdout.read().decode().splitlines()
    assert process.returncode == 7
    shown = [int(line.removeprefix("line ")) for line in lines if line.startswith("line")]
    assert shown == sorted(shown) and 1000 < len(shown) < 20_000
    missed = [line.split()[0] for line in lines if "lines were not shown: nobody" in line]
    assert len(shown) + sum(map(int, missed)) + ("last" in lines) == 20_001


def test_all_lines_of_both_streams_are_written_in_their_order(work):
    never = "ignore_closed_streams, never_wait_for_readers"
    work[2] = work[2].replace("ignore_closed_streams\n\n", f"{never}\n\n")
    work[2] = work[2].replace("streams()\n", "streams()\nnever_wait_for_readers()\n")
    done = subprocess.run(
        work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 7
    pairs = "".join(f"line {number}\nerror {number}\n" for number in range(3))
    assert done.stdout == pairs + "x" * 100_000 + "\n"
