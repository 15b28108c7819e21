"""Builds and runs the Dockerfile's targets where no container engine exists. Needs root.

A Debian root folder made by debootstrap stands in for the base image; RUN steps happen in it by
chroot, with the Dockerfile's own environment, users and .dockerignore. This proves the steps, not
the isolation: network and process table are the host's.

    python deploy/run_dockerfile.py build client server --build-arg TORCH='torch==2.10.*'
    python deploy/run_dockerfile.py run client --volume /photos:/data -- server=... data.root=/data
    python deploy/run_dockerfile.py health client; echo $?
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pathspec
from dockerfile_parse import DockerfileParser

PROJECT = Path(__file__).resolve().parent.parent
PATH = "/usr/local/bin:/usr/sbin:/usr/bin:/bin"
STAND_IN = ["--include=ca-certificates,python3,python3-pip", "bookworm"]
# Mounts end with the process; exec leaves no shell between a signal and the command.
ENTER = """
root=$1 volumes=$2; shift 2
mount -t proc proc "$root/proc"; mount --rbind /dev "$root/dev"; mount -t tmpfs tmpfs "$root/tmp"
for volume in $volumes; do
    mkdir -p "$root${volume#*:}"; mount --bind "${volume%%:*}" "$root${volume#*:}"
done
exec "$@"
"""


@dataclass
class Stage:
    """A stage while it is built: its files, and what Docker keeps beside them."""

    root: str
    build_args: dict[str, str] = field(default_factory=dict)  # --build-arg
    args: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=lambda: {"PATH": PATH})
    directory: str = "/"
    owner: str = "0:0"
    start: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)

    def command(self, command: list[str], volumes: str = "") -> list[str]:
        """The command line that runs `command` in this stage."""
        accounts = (Path(self.root) / "etc/passwd").read_text().splitlines()
        homes = {line.split(":")[2]: line.split(":")[5] for line in accounts}
        variables = {"HOME": homes[self.owner.split(":")[0]], **self.args, **self.env}
        return [
            *("unshare", "--mount", "sh", "-euc", ENTER, "sh", self.root, volumes),
            *("chroot", f"--userspec={self.owner}", self.root, "/usr/bin/env", "-i"),
            *(f"{name}={value}" for name, value in variables.items()),
            *("/bin/sh", "-c", 'cd "$0" && exec "$@"', self.directory, *command),
        ]

    def expand(self, text: str) -> str:
        """Replaces $NAME and ${NAME}, as Docker does outside of RUN."""
        variables = {**self.args, **self.env}
        return re.sub(r"\$\{?(\w+)\}?", lambda name: variables.get(name[1], ""), text)

    def inside(self, path: str) -> Path:
        """Where a path of the stage is on this machine."""
        return Path(self.root, *Path(self.directory, path).parts[1:])

    def arg(self, value: str) -> None:
        """ARG name[=default]: without either value it stays unset."""
        name, has_default, default = value.partition("=")
        if name in self.build_args or has_default:
            self.args[name] = self.build_args.get(name, default)

    def environment(self, value: str) -> None:
        """ENV name=value ..."""
        self.env |= dict(pair.split("=", 1) for pair in shlex.split(self.expand(value)))

    def workdir(self, value: str) -> None:
        """WORKDIR folder"""
        self.directory = value
        self.inside(".").mkdir(parents=True, exist_ok=True)

    def user(self, value: str) -> None:
        """USER uid:gid"""
        self.owner = value

    def run(self, value: str) -> None:
        """RUN shell command"""
        code = subprocess.run(self.command(["/bin/sh", "-c", value]), check=False).returncode
        if code:
            sys.exit(f"exit code {code} of RUN {value}")

    def volume(self, value: str) -> None:
        """VOLUME [folder, ...]"""
        for folder in json.loads(value):
            self.inside(folder).mkdir(exist_ok=True)

    def healthcheck(self, value: str) -> None:
        """HEALTHCHECK options CMD [...]"""
        self.health = json.loads(value.split("CMD", 1)[1])

    def entrypoint(self, value: str) -> None:
        """ENTRYPOINT [...]"""
        self.start = json.loads(value)

    def nothing(self, value: str) -> None:
        """Says something about the image that no process here notices."""

    def copy(self, value: str) -> None:
        """COPY source... target: files of the project that .dockerignore lets through."""
        *sources, target = shlex.split(self.expand(value))
        files = context_files()
        for source in sources:
            if source in files:
                into = self.inside(target) / Path(source).name
                copies = {source: into if target.endswith("/") else self.inside(target)}
            else:
                below = (file for file in files if file.startswith(source + "/"))
                copies = {f: self.inside(target) / Path(f).relative_to(source) for f in below}
            if not copies:
                sys.exit(f"COPY {value}: {source} does not exist or .dockerignore hides it")
            for file, to in copies.items():
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(PROJECT / file, to)


STEPS: dict[str, Callable[[Stage, str], None]] = {
    "ARG": Stage.arg,
    "COPY": Stage.copy,
    "ENTRYPOINT": Stage.entrypoint,
    "ENV": Stage.environment,
    "EXPOSE": Stage.nothing,
    "HEALTHCHECK": Stage.healthcheck,
    "RUN": Stage.run,
    "STOPSIGNAL": Stage.nothing,
    "USER": Stage.user,
    "VOLUME": Stage.volume,
    "WORKDIR": Stage.workdir,
}


def context_files() -> set[str]:
    """The files of the project that .dockerignore lets through."""
    rules = (PROJECT / ".dockerignore").read_text().splitlines()
    ignored = pathspec.GitIgnoreSpec.from_lines(rules)
    files = (path.relative_to(PROJECT).as_posix() for path in PROJECT.rglob("*") if path.is_file())
    return {file for file in files if not ignored.match_file(file)}


def stand_in(folder: Path) -> Path:
    """A Debian root with Python and pip, made once."""
    if not (folder / ".complete").exists():
        print(f"making a Debian root in {folder}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        made = ["debootstrap", "--variant=minbase", *STAND_IN, str(folder)]
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
        (folder / ".complete").touch()
    return folder


def copied(source: str, root: Path) -> str:
    """A new root folder with the files of another one, and the host's names and certificates."""
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run(["cp", "-aT", "--reflink=auto", source, str(root)], check=True)
    for file in ("/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt"):
        shutil.copyfile(file, f"{root}{file}")
    return str(root)


def plans() -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """Of every stage in the Dockerfile: what it is made from and its steps."""
    stages: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    steps: list[tuple[str, str]] = []
    parser = DockerfileParser(fileobj=io.BytesIO((PROJECT / "Dockerfile").read_bytes()))
    for step in parser.structure:
        if step["instruction"] == "FROM":
            parent, _, name = step["value"].split()
            steps = []
            stages[name] = (parent, steps)
        elif step["instruction"] != "COMMENT":
            steps.append((step["instruction"], step["value"]))
    return stages


def build(name: str, options: argparse.Namespace, made: dict[str, Stage]) -> Stage:
    """Makes a stage, and before it those that it needs and that are not made yet."""
    if name in made:
        return made[name]
    parent, steps = plans()[name]
    if parent in plans():
        base = build(parent, options, made)
        stage = replace(base, root=copied(base.root, options.cache / name), env=dict(base.env))
    else:
        root = options.base or stand_in(options.cache / "base")
        build_args = dict(pair.split("=", 1) for pair in options.build_arg)
        stage = Stage(copied(str(root), options.cache / name), build_args)
    for instruction, value in steps:
        print(f"{name}: {instruction} {value}", flush=True)
        if instruction == "COPY" and value.startswith("--from="):
            origin, source, target = value.removeprefix("--from=").split()
            files = build(origin, options, made).inside(source)
            subprocess.run(["cp", "-aT", str(files), str(stage.inside(target))], check=True)
        else:
            STEPS[instruction](stage, value)
    stage.args = {}
    (options.cache / f"{name}.json").write_text(json.dumps(vars(stage)))
    made[name] = stage
    return stage


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["build", "run", "health"])
    parser.add_argument("targets", nargs="+", choices=plans(), metavar="target")
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--base", type=Path, help="another root folder as base image")
    parser.add_argument("--volume", action="append", default=[], metavar="HOST:INSIDE")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/orchestra_flwr/image")
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options, arguments = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1 :]
    if os.geteuid() != 0:
        parser.error("chroot and mounts need root")
    if options.action == "build":
        made: dict[str, Stage] = {}
        for target in options.targets:
            build(target, options, made)
        return
    record = options.cache / f"{options.targets[0]}.json"
    stage = Stage(**json.loads(record.read_text()))
    command = [*stage.start, *arguments] if options.action == "run" else stage.health
    line = stage.command(command, " ".join(options.volume))
    os.execvp(line[0], line)


if __name__ == "__main__":
    main()
