"""The commands: arguments to configuration, errors to one line and an exit code."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from orchestra_flwr.config import Config, ConfigError, config_to_yaml, load_config

USAGE = """\
usage: run_sim.py [key=value ...]      train Orchestra in a simulated federation

  run_sim.py                                          digits, 10 clients, about two minutes
  run_sim.py data=image_folder data.root=photos.zip   your own images
  run_sim.py data=cifar10                             the paper's cross-device run
  run_sim.py resume=outputs/<name>/<date_time>        go on with an interrupted run

  --help    this text and every key with its value
  --cfg     the composed configuration, nothing is run

Values may be groups (data=cifar10 takes conf/data/cifar10.yaml) or single keys (training.lr=0.01).
Exit code 0: done, 1: the run failed, 2: the configuration is wrong and nothing was written.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """`run_sim.py`: simulates a federation; returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if {"-h", "--help"} & set(arguments):
            print(USAGE + "\nEvery key with its value:\n\n" + config_to_yaml(load_config()))
            return 0
        shown = "--cfg" in arguments
        config = load_config([a for a in arguments if a != "--cfg"])
        if shown:
            print(config_to_yaml(config), end="")
            return 0
        return _simulate(config)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _simulate(config: Config) -> int:
    # Heavy imports wait until the configuration is known to be right.
    from orchestra_flwr.federation.population import load_population
    from orchestra_flwr.federation.simulation import check_resources, simulate
    from orchestra_flwr.federation.strategy import FederationError
    from orchestra_flwr.methods import build_method
    from orchestra_flwr.reporting import RunFolder, make_progress, print_summary

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    logging.getLogger("orchestra_flwr").setLevel(logging.INFO)
    check_resources(config)
    population = load_population(config)
    build_method(config, population.dataset.channels)  # checks the method's own options
    try:
        folder = RunFolder.resume(config.resume) if config.resume else RunFolder.create(config)
    except OSError as error:
        raise ConfigError(f"the run folder cannot be made: {error}") from None
    progress = make_progress(config.logging.progress, config.federation.rounds)
    try:
        with progress:
            summary = simulate(config, population, folder, progress)
    except (FederationError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        print(f"continue with: resume={folder.path}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"stopped; continue with: resume={folder.path}", file=sys.stderr)
        return 130
    print_summary(summary, folder.path)
    return 0
