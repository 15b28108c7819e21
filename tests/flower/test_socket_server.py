"""Flower's programs at a socket, and the time that a SuperNode signs."""

import signal
import subprocess
import sys
import time
from datetime import datetime

import pytest

from orchestra_flwr.flower import socket_server

# What a SuperNode does for each request: see the interceptor of Flower 1.41 and 1.42.
SIGN = """
import runpy, sys
module = runpy.run_path(sys.argv[1])
if sys.argv[2]:
    module["sign_at"](float(sys.argv[2]))
import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from types import SimpleNamespace
key = ec.generate_private_key(ec.SECP384R1())
request = httpx.Request("POST", "http://x")
context = SimpleNamespace(request=request)
NodeAuthHttpInterceptor(key, key.public_key()).intercept(context, lambda context: None)
print(request.headers["flwr-timestamp"])
"""


def signed(signing_time):
    """The time that a SuperNode signs, in seconds."""
    done = subprocess.run(
        [sys.executable, "-c", SIGN, socket_server.__file__, signing_time],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return datetime.fromisoformat(done.stdout.strip()).timestamp()


def test_a_supernode_signs_the_time_of_its_server():
    """Whatever the machine's clock says, and whoever sets it meanwhile."""
    for ahead in (60, -4000):
        server_time = time.time() + ahead
        signing_time = server_time - socket_server.clock()
        assert 0 <= signed(f"{signing_time}") - server_time < 60


def test_without_a_server_time_it_signs_its_own():
    before = time.time()
    assert 0 <= signed("") - before < 60


# A SuperNode that does not ask for messages any more, or whose thread for heartbeats has ended.
FAIL = """
import runpy, sys, threading, time, types
module = runpy.run_path(sys.argv[1])
program = types.ModuleType("program")

def deaf():
    threading.Thread(target=time.sleep, args=(600,)).start()

def lost():
    threading.Thread(target=lambda: 1 / 0).start()
    time.sleep(600)

program.run = {"deaf": deaf, "lost": lost}[sys.argv[2]]
sys.modules["program"] = program
module["PROGRAMS"]["flower-supernode"] = ("program", "run")
module["main"](["socket", "", "flower-supernode"])
"""


@pytest.mark.parametrize(("fails", "code"), [("deaf", 1), ("lost", -signal.SIGTERM)])
def test_a_supernode_that_has_given_up_ends(fails, code):
    """At an error 500 of its server it stayed: its client got no message, and looked well."""
    done = subprocess.run(
        [sys.executable, "-c", FAIL, socket_server.__file__, fails],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == code
    assert ("ZeroDivisionError" in done.stderr) == (fails == "lost")
