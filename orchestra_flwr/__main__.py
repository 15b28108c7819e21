"""The installed commands; `python -m orchestra_flwr` is `run_sim.py`.

Each imports its modules only when it runs: Ctrl-C ends it with one line even while they load.
"""

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module


def _command(place: str, arguments: Sequence[str] | None = None, *, stopped: int = 130) -> int:
    """Runs the function at a place; returns its exit code, or `stopped` where Ctrl-C came first."""
    module, _, name = place.partition(":")
    try:
        code: int = getattr(import_module(module), name)(arguments)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        code = stopped
    return code


sim = partial(_command, "orchestra_flwr.cli:main")
server = partial(_command, "orchestra_flwr.cli:server_main")
submit = partial(_command, "orchestra_flwr.cli:submit_main")
client = partial(_command, "orchestra_flwr.cli:client_main", stopped=0)  # it has no other end
experiment = partial(_command, "orchestra_flwr.cli:experiment_main")
embed = partial(_command, "orchestra_flwr.cli:embed_main")
label = partial(_command, "orchestra_flwr.cli:label_main")
compare = partial(_command, "orchestra_flwr.cli:compare_main")
export = partial(_command, "orchestra_flwr.cli:export_main")
evaluate = partial(_command, "orchestra_flwr.cli:evaluate_main")
report = partial(_command, "orchestra_flwr.experiments.__main__:main")
keys = partial(_command, "orchestra_flwr.deployment.keys.command_line:main")
top = partial(_command, "orchestra_flwr.cli:top_main")

if __name__ == "__main__":
    sys.exit(sim())
