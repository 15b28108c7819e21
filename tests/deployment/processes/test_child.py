import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from orchestra_flwr.deployment.processes.child import Child, accepts, child_environment


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_output_is_logged_told_and_its_end_remembered(tmp_path):
    lines = []
    child = Child(
        ["python", "-c", "print('one'); print('two')"], {}, tmp_path / "a" / "log", lines.append
    )
    wait_until(lambda: child.returncode is not None)
    assert child.tail() == lines == ["one", "two"]
    first = (tmp_path / "a" / "log").read_text().splitlines()
    assert first[0].endswith(f"process {child.pid} begins") and first[1:] == ["one", "two"]
    assert child.returncode == 0
    child = Child(["python", "-c", "print('three')"], {}, tmp_path / "a" / "log")
    wait_until(lambda: child.returncode is not None)
    child.tail()
    *before, begins, line = (tmp_path / "a" / "log").read_text().splitlines()
    assert before == first and f"process {child.pid} begins" in begins and line == "three"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_child_makes_progress_while_it_writes_or_computes(tmp_path):
    child = Child(["sleep", "60"], {}, tmp_path / "log")
    try:
        wait_until(lambda: Path(f"/proc/{child.pid}/comm").read_text() == "sleep\n")
        idle = child.progress
        time.sleep(0.3)
        assert child.progress == idle
    finally:
        child.stop()
    child = Child(["python", "-c", "while True: pass"], {}, tmp_path / "log")
    try:
        seen = child.progress
        wait_until(lambda: child.progress != seen)
    finally:
        child.stop()


def test_without_room_for_its_log_a_child_runs_on_without_a_word(tmp_path, capfd):
    log = tmp_path / "log"
    log.symlink_to("/dev/full")
    child = Child(["python", "-c", "print('one'); print('two')"], {}, log)
    wait_until(lambda: child.returncode is not None)
    assert child.tail() == ["one", "two"]
    assert capfd.readouterr().err == ""


def test_a_child_that_does_not_want_to_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("orchestra_flwr.deployment.processes.child.STOP_SECONDS", 0.3)
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); "
    stubborn += "print('up', flush=True); time.sleep(60)"
    child = Child(["python", "-c", stubborn], {}, tmp_path / "log")
    wait_until(lambda: child.tail() == ["up"])
    child.stop()
    assert child.returncode == -signal.SIGKILL


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells a child of its parent's death"
)
def test_a_killed_parent_takes_its_children_along(tmp_path):
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time\nfrom pathlib import Path\n"
            "from orchestra_flwr.deployment.processes.child import Child\n"
            f"child = Child(['sleep', '60'], {{}}, Path({str(tmp_path / 'log')!r}))\n"
            "print(child.pid, flush=True)\ntime.sleep(60)",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    child = int(parent.stdout.readline())
    assert runs(child)
    parent.kill()
    parent.wait()
    wait_until(lambda: not runs(child))


def test_flowers_programs_are_found_beside_python_and_told_to_be_quiet():
    environment = child_environment({"FLWR_HOME": "/x"})
    assert environment["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert (environment["FLWR_HOME"], environment["FLWR_TELEMETRY_ENABLED"]) == ("/x", "0")


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "socks5://127.0.0.1:9"])
def test_no_proxy_comes_between_flowers_programs(monkeypatch, tmp_path, proxy):
    """A proxy knows nothing of what listens on 127.0.0.1, and httpx has no SOCKS by itself."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, proxy)
    monkeypatch.setenv("no_proxy", "example.org")
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    ask = f"import httpx; print(httpx.Client().get({url!r}).status_code)"
    child = Child(["python", "-c", ask], {}, tmp_path / "log")
    wait_until(lambda: child.returncode is not None)
    server.shutdown()
    server.server_close()
    assert child.tail()[-1:] == ["200"]


def test_a_socket_accepts_while_somebody_listens(tmp_path):
    assert not accepts(tmp_path / "link")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "link"))
        assert not accepts(tmp_path / "link")
        listener.listen()
        assert accepts(tmp_path / "link")
    assert not accepts(tmp_path / "link")


SHADOWING = ("random", "signal", "ctypes", "json", "flwr", "uvicorn")


def test_files_of_the_working_folder_are_not_imported(tmp_path, monkeypatch):
    """A client may be started in a folder of somebody's scripts."""
    for name in SHADOWING:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    program = "import sys; from importlib import import_module as i; "
    program += f"print(*(i(n).__file__ for n in {SHADOWING}), sep='\\n')"
    child = Child([sys.executable, "-c", program], {}, tmp_path / "log")
    wait_until(lambda: child.returncode is not None)
    assert child.returncode == 0 and len(child.tail()) == len(SHADOWING), child.tail()
    assert not any(str(tmp_path) in line for line in child.tail())
