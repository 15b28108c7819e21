"""Values that a preset chooses by the images, the method, the clients and the machine.

The table is in the preset's own file, as `preset_options.rows`.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override

from orchestra_flwr.config.choices import DataConfig
from orchestra_flwr.config.reading.hydra_overrides import options_of_chosen
from orchestra_flwr.config.reading.overrides import override_text, read_overrides, values_of
from orchestra_flwr.config.reading.resume import value_at
from orchestra_flwr.config.reading.saved_config import read_config_file
from orchestra_flwr.config.section import Composed, ConfigError, parse, section_keys
from orchestra_flwr.config.user_packages import packages_in
from orchestra_flwr.console.quiet_logger import quiet_logger

logger = logging.getLogger(__name__)


def chosen_by_data(
    section: type[Composed], values: Mapping[str, Any], overrides: Sequence[Override]
) -> list[Override]:
    """Overrides of all rows that fit the composed values, without keys that the command sets.

    A resumed run keeps what was chosen when it began.

    Raises:
        ConfigError: the configuration of the run to resume is damaged.
    """
    rows = (values.get("preset_options") or {}).get("rows", ())
    if not rows:
        return []
    said, common = {*values_of(overrides)}, {*section_keys(section)}

    def is_open(key: str) -> bool:
        """Whether the command leaves a key open; another plug-in may not have the option."""
        group, _, option = key.partition(".")
        if key in said or key in common or group not in said:
            return key not in said
        return option in (options_of_chosen(section, values, group) or ())

    def unsaid(lines: Sequence[str]) -> dict[str, Override]:
        """The last override of each key that the command leaves open."""
        read = {line.key_or_group: line for line in read_overrides(lines)}
        return {key: line for key, line in read.items() if is_open(key)}

    if values.get("resume"):
        lines = _saved(rows, Path(str(values["resume"])) / "config.yaml")
        return [*unsaid(lines).values()]
    facts = _facts(values)
    if not isinstance(facts["clients"], int | float):
        return []  # the run itself will say what is wrong
    fitting = [row for row in rows if _fits(row, facts)]
    chosen = unsaid([line for row in fitting for line in row["choose"]])
    written = [str(line.input_line) for line in chosen.values()]
    reasons: dict[str, tuple[str, str]] = {}  # of each key: its line, and the reason for it
    for row in fitting:
        for line in row["choose"]:
            if reasons.get(key := line.partition("=")[0], ("", ""))[0] != line:
                reasons[key] = line, row["because"]
    why = dict.fromkeys(because for line, because in reasons.values() if line in written)
    logger.info(
        "preset=%s: for %s: %s",
        values_of(overrides)["preset"],
        _sentence(facts),
        f"{' '.join(written)} ({'; '.join(why)})" if written else "nothing is left to choose",
    )
    return [*chosen.values()]


def _saved(rows: Sequence[Mapping[str, Any]], file: Path) -> list[str]:
    """A saved run's values of the keys of all rows, as overrides."""
    saved: Any = read_config_file(file) if file.is_file() else {}
    lines = []
    for key in dict.fromkeys(line.partition("=")[0] for row in rows for line in row["choose"]):
        value = value_at(saved, key.split(".") if "." in key else (key, "name"))
        lines += [] if value is None else [override_text(key, value)]
    return lines


def _facts(values: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that rows may ask for; without images here, none about images."""
    clients = (values.get("federation") or {}).get("clients")
    method = (values.get("method") or {}).get("name")
    network = str((values.get("model") or {}).get("timm"))
    gpu = _has_gpu(str(values.get("device")))
    facts = {"clients": clients, "method": method, "network": network, "gpu": gpu}
    survey = None
    # The run itself will say what is wrong.
    with suppress(ConfigError), quiet_logger("orchestra_flwr.data", logging.ERROR):
        data = parse(DataConfig, values.get("data"), "data")
        data.look_in(packages_in(values.get("plugins")))
        survey = data.plugin.survey(data)
    if survey is not None:
        wanted = "None or three numbers, of training images, of these with labels, and of tests"
        fits = isinstance(survey, tuple) and len(survey) == 3
        data.check_returned("survey", survey, fits, wanted)
        images, labelled, tests = survey
        if data.test_share is not None and not tests:
            held_back = int(data.test_share * labelled)
            images, tests = images - held_back, min(held_back, data.test_limit or held_back)
        facts |= {"images": images, "labelled": labelled > 0, "tests": tests}
    return facts


def _has_gpu(device: str) -> bool:
    import torch

    return device.startswith("cuda") or (device == "auto" and torch.cuda.device_count() > 0)


def _fits(row: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    return (
        facts.get("images", 0) >= row.get("images_from", 0)
        and facts["clients"] >= row.get("clients_from", 0)
        and facts.get("tests", 0) >= row.get("tests_from", 0)
        and facts["method"] in row.get("methods", [facts["method"]])
        and fnmatchcase(facts["network"], row.get("network", "*"))
        and all(facts.get(name) == row[name] for name in ("gpu", "labelled") if name in row)
    )


def _sentence(facts: Mapping[str, Any]) -> str:
    images = "images of the clients"
    if "images" in facts:
        images = f"{facts['images']:,} images with{'' if facts['labelled'] else 'out'} labels"
    gpu = "a GPU" if facts["gpu"] else "no GPU"
    return f"{images}, {facts['clients']} clients (federation.clients), {gpu}"
