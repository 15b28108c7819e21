"""Simulations from Python: in a script, a notebook or a thread."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from orchestra_flwr.config import Config, ConfigError, load_config, override_text, path_keys
from orchestra_flwr.data.any_dataset import as_dataset
from orchestra_flwr.data.sources.stored import store
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.simulation import prepared
from orchestra_flwr.plugins import has_changed
from orchestra_flwr.reporting import Progress, RoundOutcome, RunFolder, make_progress
from orchestra_flwr.reporting.run_result import Result

Report = Callable[[dict[str, Any]], None]

STORED = "stored"  # the source of images from Python


@torch.inference_mode(False)  # training needs gradients, also within a caller's torch.no_grad()
def simulate(
    overrides: Sequence[str] | Mapping[str, Any] = (),
    dataset: Any = None,
    progress: Report | bool | None = None,
) -> Result:
    """Trains an encoder in a simulated federation, as the command `orchestra-sim` does.

    It runs in this process and, with engine=ray, in worker processes; engine=inline needs no Ray.

    Args:
        overrides: as on the command line, ["method=simclr", "federation.rounds=5"], or a mapping,
            {"method": "simclr", "federation.rounds": 5}. Texts in a mapping need no quotes, but
            for those that look like numbers: {"data.label": "'1'"}. A `Result` is its folder:
            {"resume": result, "federation.rounds": 9}.
        dataset: the images, instead of data=...: a data set of torch, torchvision or Hugging Face,
            a tensor (N, C, H, W), an array (N, H, W, C), either as (N, H, W) for gray images, or a
            list of images or of pairs (image, label); a pair (train, test) of these, or a mapping
            with "train" and "test" (or "validation"). They are decoded, made square
            (`data.image_size`) and stored in the user's cache folder for the run's processes and
            for resume=.
        progress: True shows what the command shows (`logging.progress`); a function is called after
            each round with its `round` (0: before training), `rounds`, `loss`, `scores` (None if
            it was not evaluated), `seconds` and `dropped` (a line for each dropped client).

    Returns:
        The run's folder, metrics and encoder.

    Raises:
        ConfigError: the configuration or the data set cannot be used; nothing was run.
        FederationError: the run failed; it can be resumed.

    Examples:
        >>> from orchestra_flwr import simulate
        >>> result = simulate(["engine=inline", "federation.rounds=3"], progress=True)
        >>> print(result)
    """
    lines = _lines(overrides)
    if dataset is not None:
        lines = _with_images(lines, dataset)
    config = load_config(lines, all_read=True)
    _check_code(config.plugins)
    with prepared(config) as run, RunFolder.open(config) as folder:
        try:
            with _display(config, progress) as shown:
                run(folder, shown)
        except (FederationError, KeyboardInterrupt) as error:
            error.add_note(folder.how_to_continue(getattr(error, "resume_round", None)))
            raise
    return Result(folder.path)


def _check_code(packages: Sequence[str]) -> None:
    """Refuses a run by code that is no longer in the files: a notebook keeps what it imported."""
    for package in filter(has_changed, packages):
        raise ConfigError(
            f"plugins=[{package}]: its files have changed since this process imported them: start "
            "Python again"
        )


def _lines(overrides: Sequence[str] | Mapping[str, Any]) -> list[str]:
    if isinstance(overrides, Mapping):
        paths = set(path_keys(Config))
        return [override_text(key, value, paths) for key, value in overrides.items()]
    if isinstance(overrides, str) or not all(isinstance(line, str) for line in overrides):
        raise ConfigError(
            f'overrides: must be a list such as ["federation.rounds=5"], not {overrides!r}'
        )
    return list(overrides)


def _with_images(lines: list[str], dataset: Any) -> list[str]:
    """The overrides of a run with these images, stored in a file for all processes."""
    for line in lines:
        if line.partition("=")[0] in ("data", "data.name", "data.root", "resume"):
            raise ConfigError(f"{line}: must not be given together with dataset=...")
    lines = stored = [f"data={STORED}", *lines]
    config = load_config(lines)
    RunFolder.check(config)  # before what may take minutes
    size = None
    while config.data.image_size != size:  # a preset may choose another, by how many there are
        size, cache = config.data.image_size, config.data.settings.cache
        try:
            file = store(as_dataset(dataset, STORED, size), cache)
        except OSError as error:
            raise ConfigError(f"data.cache: the images cannot be stored: {error}") from None
        stored = [*lines, f"data.root={file}"]
        config = load_config(stored)
    return stored


def _display(config: Config, progress: Report | bool | None) -> Progress:
    rounds = config.federation.rounds
    if callable(progress):
        return _Reported(rounds, progress)
    return make_progress(config.logging.progress if progress else "off", rounds)


class _Reported(Progress):
    """Calls a function after each round."""

    def __init__(self, rounds: int, report: Report) -> None:
        super().__init__(rounds)
        self._report = report

    def round_finished(self, outcome: RoundOutcome) -> None:
        """Passes it on as a mapping."""
        super().round_finished(outcome)
        self._report(
            {
                "round": outcome.round,
                "rounds": self.rounds,
                "loss": dict(outcome.loss),
                "scores": None if outcome.scores is None else dict(outcome.scores),
                "seconds": outcome.seconds,
                "dropped": list(outcome.dropped),
            }
        )
