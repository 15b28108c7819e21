"""What must hold after every fault; each check returns a line for everything that does not."""

from __future__ import annotations

import json
import signal
import stat
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from faults.leaks import leaks

if TYPE_CHECKING:
    from faults.processes import Command

FAILED, STOPPED = 1, 130  # exit codes of a run that can be resumed, README.md
TERMINATED = 128 + signal.SIGTERM
FAR = 100  # times what is usual: a model or a loss that somebody has taken over
SAME_BITS = ("encoder.safetensors", "checkpoint/state.safetensors")


def exit_problems(command: Command, code: int | None, forgiven: set[int]) -> list[str]:
    """A session ends with 0, or with a documented code and one line that says why.

    Args:
        command: the session of a server or a simulation.
        code: its exit code.
        forgiven: codes that the fault explains, such as -9 after SIGKILL.
    """
    problems = traceback_problems(command, "the run")
    if code == 0 or code in forgiven - {STOPPED, TERMINATED}:
        return problems
    if code == FAILED:
        beginning = "error: "
    elif code in forgiven:
        beginning = "stopped"
    else:
        return [*problems, f"exit code {code}: {(command.lines or ['no output'])[-1]}"]
    reasons = [line for line in command.lines if line.startswith(beginning)]
    if len(reasons) != 1:
        problems.append(f"exit code {code} with {len(reasons)} lines of {beginning!r}: {reasons}")
    if not command.has("continue with: "):
        problems.append(f"exit code {code} without a line that says how to continue")
    return problems


def traceback_problems(command: Command, who: str) -> list[str]:
    """Nobody shows a traceback, neither Python's nor C++'s."""
    marks = ("Traceback (most recent call last)", "*** SIG", "Fatal Python error", "C  [")
    shown = [line for line in command.lines if any(mark in line for mark in marks)]
    return [f"{who} shows {len(shown)} tracebacks ({command.log.name})"] if shown else []


def bit_problems(run: Path, reference: Path, rounds: int) -> list[str]:
    """The run ends in the tensors of the undisturbed one, with one record of each round."""
    from safetensors.torch import load_file

    problems = []
    for name in SAME_BITS:
        try:
            ours, theirs = load_file(run / name), load_file(reference / name)
        except OSError as error:
            problems.append(f"{name} cannot be read: {error}")
            continue
        if ours.keys() != theirs.keys() or not all(ours[k].equal(theirs[k]) for k in ours):
            problems.append(f"{name} has other bits than the undisturbed run's")
    return problems + record_problems(run, rounds)


def record_problems(run: Path, rounds: int) -> list[str]:
    """Every round is in metrics.jsonl, once and in order."""
    try:
        lines = (run / "metrics.jsonl").read_text().splitlines()
        recorded = [json.loads(line)["round"] for line in lines]
    except (OSError, ValueError, KeyError) as error:
        return [f"metrics.jsonl cannot be read: {error}"]
    wanted = list(range(rounds + 1))
    return (
        [] if recorded == wanted else [f"metrics.jsonl holds the rounds {recorded}, not {wanted}"]
    )


def late_problems(run: Path) -> list[str]:
    """Every round had a good reply, and every other client was late or dropped."""
    problems = []
    for line in (run / "metrics.jsonl").read_text().splitlines():
        clients = json.loads(line)["clients"]
        gone = {*clients.get("late", ()), *(entry["client"] for entry in clients["dropped"])}
        if clients["cohort"] and not 0 < clients["ok"] == clients["cohort"] - len(gone):
            problems.append(f"a round's clients do not add up: {clients}")
    return problems


def hostile_problems(
    run: Path, reference: Path, client: str, refused: Collection[int]
) -> list[str]:
    """One client's absurd replies were refused by name, and left encoder and checkpoints as usual.

    Args:
        run: the run's folder.
        reference: that of an undisturbed run.
        client: its name.
        refused: the rounds in which its replies must have been refused; in no other any was.
    """
    from safetensors.torch import load_file

    usual = {n: float(t.abs().max()) for n, t in load_file(reference / SAME_BITS[1]).items()}
    problems = []
    for file in (run / SAME_BITS[0], *sorted((run / "checkpoint").glob("state*.safetensors"))):
        for name, tensor in load_file(file).items():
            largest = float(tensor.abs().max()) if tensor.numel() else 0.0
            if not largest <= FAR * max(usual.get(name, 0.0), 1.0):
                problems.append(f"{file.name}: {name} reaches {largest:g}")
    dropped = {
        (record["round"], entry["client"])
        for record in _records(run / "metrics.jsonl")
        for entry in record["clients"]["dropped"]
    }
    if dropped != (wanted := {(number, client) for number in refused}):
        problems.append(f"refused were {sorted(dropped)} instead of {sorted(wanted)}")
    for record in _records(run / "metrics.jsonl"):
        if not abs(record["loss"].get("total", 0.0)) <= FAR:
            problems.append(f"round {record['round']}: a loss of {record['loss']['total']:g}")
    return problems


def code_problems(marker: Path) -> list[str]:
    """Nothing of what a stranger brought was run: it would have left the marker."""
    return ["code from a stranger was run"] if marker.exists() else []


def leak_problems(sent: bytes, root: Path, size: int, key: Path, *private: str) -> list[str]:
    """No image, name, path or key is in what a client sent.

    Args:
        sent: all bytes of it.
        root: its folder of images.
        size: of the images that it trains on, in pixels.
        key: its private key.
        private: other texts that must not be sent.
    """
    lines = [line for line in key.read_text().splitlines() if not line.startswith("-----")]
    leaked = leaks(sent, root, size, *private, *(line for line in lines if line))
    if not sent:
        leaked.append("nothing at all, though it was listened to")
    return [f"the client sent {', '.join(leaked[:5])}"] if leaked else []


def ledger_problems(run: Path, state: Path, most: int) -> list[str]:
    """What clients released, the server has written down before; and nobody exceeds the total.

    Args:
        run: the run's folder.
        state: the folder of all clients' states.
        most: the releases of a client that fit into privacy.total_epsilon.
    """
    asked: Counter[tuple[str, int]] = Counter()
    for entry in _records(run / "checkpoint" / "releases.jsonl"):
        asked.update((name, entry["round"]) for name in entry["clients"])
    problems = []
    for folder in sorted(path for path in state.iterdir() if path.is_dir()):
        released = Counter(entry["round"] for entry in _records(folder / "releases.jsonl"))
        for number, times in released.items():
            if times > (counted := asked[folder.name, number]):
                problems.append(
                    f"client {folder.name} released {times} times in round {number}, "
                    f"the server's ledger has {counted}"
                )
        for whose, total in (
            ("its own", released.total()),
            ("the server's", sum(n for (name, _), n in asked.items() if name == folder.name)),
        ):
            if total > most:
                problems.append(
                    f"client {folder.name}: {total} releases in {whose} ledger, "
                    f"privacy.total_epsilon allows {most}"
                )
    return problems


def temporary_problems(folder: Path) -> list[str]:
    """After the last start and its end no temporary file or folder is left."""
    left = sorted(path.name for path in folder.iterdir() if path.name != ".ballast")
    return [f"{len(left)} temporary folders are left: {', '.join(left[:3])}"] if left else []


def mode_problems(folder: Path) -> list[str]:
    """No secret can be read by another user: private keys, and what clients and checkpoints keep.

    A file counts as readable if its own mode and those of all folders above it let others in.
    """
    readable: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*")):
        part = path.relative_to(folder).parts
        secret = path.suffix == ".key" or part[0] == "state" or "checkpoint" in part
        if path.is_file() and secret and path.name != ".ballast" and _is_open(path, folder):
            name = "/".join(part[2:]) or path.name
            readable.setdefault("/".join(part[:-1][:2]), []).append(f"{name} ({_mode(path):04o})")
    return [
        f"others can read {len(names)} files in {where or 'the folder'}: {', '.join(names[:3])}"
        for where, names in readable.items()
    ]


def _is_open(path: Path, folder: Path) -> bool:
    for others in ((stat.S_IRGRP, stat.S_IXGRP), (stat.S_IROTH, stat.S_IXOTH)):
        read, enter = others
        above = [
            parent for parent in path.parents if parent.is_relative_to(folder) and parent != folder
        ]
        if _mode(path) & read and all(_mode(parent) & enter for parent in above):
            return True
    return False


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _records(file: Path) -> list[dict]:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines()]
