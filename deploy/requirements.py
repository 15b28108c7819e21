"""Prints what pip installs for an image: the dependencies in pyproject.toml and the wanted torch.

`requirements.py TORCH`, where TORCH is empty, a requirement ("torch==2.10.*"), or "base": then the
versions of torch and torchvision that are installed already are asked for exactly, so that pip
keeps them or says why it cannot. Runs in the base image, before anything is installed.
"""

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def main() -> None:
    """Prints requirements; says it where the base image does not fit."""
    if sys.version_info < (3, 11):  # noqa: UP036 (the base image's Python may be any)
        sys.exit(f"the base image has Python {sys.version.split()[0]}, Flower needs 3.11 or newer")
    import tomllib

    torch = sys.argv[1]
    with Path("pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    # The images of server and client have one environment.
    print(*project["dependencies"], *project["optional-dependencies"]["server"], sep="\n")
    if torch != "base":
        print(torch)
        return
    try:
        print(f"torch=={version('torch')}", f"torchvision=={version('torchvision')}", sep="\n")
    except PackageNotFoundError as error:
        sys.exit(f"TORCH=base: the base image has no {error.name}")


if __name__ == "__main__":
    main()
