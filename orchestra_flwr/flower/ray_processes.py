"""Ray's processes without which a run cannot go on.

Checked against Ray 2.55: `ray._private`, which no public call replaces.
"""

import importlib
import os
import warnings
from types import ModuleType
from typing import Any

VITAL = ("raylet", "gcs_server")  # in Ray's words: schedules and stores objects; knows all nodes


def ended_process() -> str | None:
    """One line about a process of Ray that has ended while Ray is in use; None: all of them run.

    Those of a cluster that was joined were not started from here, and are not looked at.
    """
    from ray._private import worker

    node = worker._global_node
    dead: dict[str, Any] = dict(node.dead_processes()) if node is not None else {}
    for name in VITAL:
        if name in dead:
            code = dead[name].returncode
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            return f"engine=ray: Ray's process {name} {how}, perhaps for want of memory"
    return None


def load_ray() -> ModuleType:
    """Imports Ray, and keeps it from ending this process before it has said how to go on.

    Ray ends a driver whose raylet is gone if process 1 is the driver's parent, as under systemd or
    in a container. It takes that for the death of the process that matters, unless a variable, read
    when Ray is loaded, names another one: here this process, which is always alive.

    One way remains: a thread that hands an object to Ray's store, which is in the raylet, in the
    moment when the raylet ends. Ray's client of the store then ends this process, and has no option
    against it. The run's checkpoint is whole.
    """
    os.environ["RAY_RAYLET_PID"] = str(os.getpid())
    # Python 3.14 finds fault with a `return` in Ray's code, where it is first compiled.
    warnings.filterwarnings("ignore", category=SyntaxWarning, module=r".*/ray/")
    return importlib.import_module("ray")
