"""Mutation testing of one room by mutmut: which single changes of its code its tests miss.

    make mutants ROOM=privacy
    python benchmarks/mutants.py privacy --sample 200 --seed 0

A copy of the checkout in `outputs/mutants/<room>/` keeps the results: a later call only runs what
changed or was not run yet. The command prints the changes that no test noticed, and the share that
was noticed. `mutmut show <name>`, called in that folder, prints a change.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
# Tests that take minutes and measure attacks, not single lines; those that start the package in a
# process of its own, in which mutmut does not find its settings.
SKIPPED = {
    "deployment/keys": (
        "tests/deployment/keys/test_site_folder.py::test_the_first_start_makes_the_key_at_the_site",
        "tests/deployment/keys/test_site_folder.py::test_the_key_is_made_where_the_client_looks_for_it",
    ),
    "privacy": (
        "tests/privacy/test_attack.py",
        "tests/privacy/test_audit.py",
        "tests/privacy/test_inversion.py",
    ),
}
# Tests of other rooms that hold promises of this one.
ADDED = {
    "methods/mocov2.py": ("tests/methods/test_chance_losses.py",),
    "methods/orchestra.py": (
        "tests/methods/test_chance_losses.py",
        "tests/clustering/clusterings/test_clusterings.py",
        "tests/config/reading/test_unread.py",
    ),
    "methods/simclr.py": (
        "tests/methods/test_chance_losses.py",
        "tests/methods/test_semi_supervised.py",
    ),
    "methods/swav.py": ("tests/methods/test_chance_losses.py",),
    "clustering": ("tests/methods/test_orchestra.py",),
    "methods/roles.py": ("tests/methods/test_methods.py", "tests/training/test_learner.py"),
}
# Lines that stay: a `__call__` that mutmut has wrapped uvicorn takes for a factory.
UNCHANGED = {
    "deployment/gate": (r" = Call\(scope", r"self\._handle\(call\)", "the gate failed in a call")
}
NOTICED = ("killed", "timeout", "suspicious", "segfault")
NOT_NOTICED = ("survived", "no_tests")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("room", help="of orchestra_flwr/, such as federation/messages")
    parser.add_argument("--sample", type=int, help="mutants that are run, drawn by the seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    if not (CHECKOUT / "orchestra_flwr" / options.room).exists():
        parser.error(f"orchestra_flwr/ has no {options.room}")
    folder = CHECKOUT / "outputs" / "mutants" / options.room.replace("/", "_").removesuffix(".py")
    copy_checkout(folder)
    with (folder / "pyproject.toml").open("a") as file:
        file.write(settings(options.room))
    pattern = f"orchestra_flwr.{options.room.removesuffix('.py').replace('/', '.')}.*"
    names = [pattern]
    if options.sample:
        write_mutants(folder)
        names = drawn(known_mutants(folder), options.sample, options.seed)
    run_mutmut(folder, options.processes, names)
    subprocess.run([sys.executable, "-m", "mutmut", "results"], cwd=folder, check=True)
    subprocess.run([sys.executable, "-m", "mutmut", "export-cicd-stats"], cwd=folder, check=True)
    print(summary(json.loads((folder / "mutants" / "mutmut-cicd-stats.json").read_text())))


def copy_checkout(folder: Path) -> None:
    """Copies all files that git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=CHECKOUT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (source := CHECKOUT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / name)


def settings(room: str) -> str:
    """mutmut's section of pyproject.toml for a room and the tests of its name."""
    tests = f"tests/{room}"
    if room.endswith(".py"):
        tests = str(Path(tests).with_name(f"test_{Path(room).name}"))
    selection = [t for t in (tests, *ADDED.get(room, ())) if (CHECKOUT / t).exists()]
    skipped = [f"--deselect={t}" for t in SKIPPED.get(room, ())]
    arguments = ["-q", "-p", "no:cacheprovider", *skipped]
    mutated = f"orchestra_flwr/{room}" + ("" if room.endswith(".py") else "/*")
    return (
        "\n[tool.mutmut]\n"
        'source_paths = ["orchestra_flwr"]\n'
        f"only_mutate = {json.dumps([mutated])}\n"
        f"do_not_mutate_patterns = {json.dumps(UNCHANGED.get(room, ()))}\n"
        'also_copy = ["conf", "README.md", "LICENSE", "benchmarks", "docs"]\n'
        f"pytest_add_cli_args = {json.dumps(arguments)}\n"
        f"pytest_add_cli_args_test_selection = {json.dumps(selection)}\n"
        'process_isolation = "forkserver"\n'  # torch's threads do not survive a fork
        "timeout_constant = 20.0\n"  # seconds: a change that never ends costs a minute
        "timeout_multiplier = 3.0\n"
        "track_dependencies = false\n"
        "use_git_change_detection = false\n"
    )


def run_mutmut(folder: Path, processes: int, names: Sequence[str]) -> None:
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(processes), *names]
    subprocess.run(command, cwd=folder, check=True)


def write_mutants(folder: Path) -> None:
    """Has mutmut write all mutants and run none: it finds none of this name, and fails."""
    subprocess.run([sys.executable, "-m", "mutmut", "run", "none"], cwd=folder, check=False)


def known_mutants(folder: Path) -> list[str]:
    """The names of all mutants, sorted."""
    metas = (folder / "mutants").rglob("*.py.meta")
    return sorted(
        name for file in metas for name in json.loads(file.read_text())["exit_code_by_key"]
    )


def drawn(names: Sequence[str], count: int, seed: int) -> list[str]:
    """So many of them, the same for the same seed; a larger sample holds a smaller one."""
    shuffled = list(names)
    random.Random(seed).shuffle(shuffled)
    return shuffled[:count]


def summary(counts: Mapping[str, int]) -> str:
    """The share of mutants that a test noticed, of those that were run."""
    noticed = sum(counts.get(name, 0) for name in NOTICED)
    run = noticed + sum(counts.get(name, 0) for name in NOT_NOTICED)
    share = f"{noticed / run:.1%}" if run else "none"
    late = counts.get("timeout", 0)
    doubt = f", {late} of them by the time limit: sure on a quiet machine alone" if late else ""
    return f"{noticed} of {run} changes noticed ({share}{doubt}); {counts['total']} are possible"


if __name__ == "__main__":
    main()
