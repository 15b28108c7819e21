"""What a run folder says about its encoder, for a model card."""

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from orchestra_flwr.config import ConfigError, DataConfig, MethodConfig, parse, read_config_file
from orchestra_flwr.files import read_json
from orchestra_flwr.methods import LearnsLabels
from orchestra_flwr.models import EncoderSpec
from orchestra_flwr.models.encoder_description import read_description
from orchestra_flwr.plugins import imported_packages
from orchestra_flwr.reporting import RunFolder

MEAN = "mean"  # the model of an encoder that is the mean of all; the run's scores are its own
OF_ALL_MODELS = ("k_anonymity", "released", "privacy", "not_private", "versions")


@dataclass(frozen=True)
class CardFacts:
    """The facts about an encoder in its files.

    Attributes:
        spec: how it is built.
        about: method, backbone, rounds and data by name, as far as `encoder.json` has them.
        config: the values of the run's `config.yaml`; empty without one.
        summary: those of its `summary.json`; empty without one. Of a run with several models the
            scores are those of this encoder's.
    """

    spec: EncoderSpec
    about: Mapping[str, Any]
    config: Mapping[str, Any]
    summary: Mapping[str, Any]

    @classmethod
    def of(cls, encoder: Path) -> Self:
        """The facts in an encoder's description and in its run folder.

        Raises:
            OSError: a file cannot be read.
            ValueError: a file is damaged.
        """
        described = read_description(encoder.with_suffix(".json"))
        folder = encoder.parent
        one_of_several = folder == RunFolder(folder.parent).encoders
        if one_of_several:
            folder = folder.parent
        saved, summary = folder / "config.yaml", folder / "summary.json"
        scores = read_json(summary) if summary.is_file() else {}
        about = described.get("about") or {}
        if one_of_several or about.get("model") not in (None, MEAN):
            scores = _of_one_model(scores, about)
        return cls(
            spec=parse(EncoderSpec, described["spec"]),
            about=about,
            config=read_config_file(saved) if saved.is_file() else {},
            summary=scores,
        )

    @property
    def method(self) -> type[Any] | None:
        """The method's class; None where it is not known or not installed here."""
        section = self.config.get("method") or self.about.get("method")
        if not section:
            return None
        try:
            choice = parse(MethodConfig, section, MethodConfig.key)
            choice.look_in(self._packages)
            return choice.plugin
        except ConfigError:
            return None

    @property
    def paper(self) -> str:
        """The docstring of the method's module, with its source; "" where it is not known."""
        method = self.method
        return inspect.getdoc(sys.modules[method.__module__]) or "" if method else ""

    @property
    def learns_labels(self) -> bool:
        """Whether labels were used for training."""
        if self.method is None or not issubclass(self.method, LearnsLabels):
            return False
        shown = (self.config.get("labels") or {}).get("fraction") is not None
        return self.method.needs_labels or shown

    @property
    def pretrained(self) -> list[str]:
        """The run's keys that bring in pretrained networks, without their values."""
        model, method = (self.config.get(key) or {} for key in ("model", "method"))
        parts = {
            "init": self.config.get("init"),
            "model.weights": model.get("weights"),
            "method.teacher": "teacher" in method,  # null: each client's own
        }
        return [key for key, has_part in parts.items() if has_part]

    @property
    def data(self) -> str:
        """The images' data set; for a folder, its name without the path."""
        name = str(self.about.get("data") or "images")
        if "data" not in self.config:
            return name
        try:
            data = parse(DataConfig, self.config["data"], "data")
            data.look_in(self._packages)
            return data.label
        except ConfigError:
            return name

    @property
    def deployed(self) -> bool:
        """Whether real clients trained: only a server's configuration has `host`."""
        return "host" in self.config

    @property
    def clients(self) -> str:
        """The number of clients and their kind, in words."""
        count = (self.config.get("federation") or {}).get("clients")
        if not self.config:
            return "clients"
        if self.deployed:
            return "clients on machines of their own"
        return f"{count or 'as many'} simulated clients"

    @property
    def _packages(self) -> tuple[str, ...]:
        """The run's packages that the command has named."""
        named = imported_packages()
        return tuple(p for p in self.config.get("plugins") or () if p in named)


def _of_one_model(summary: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, Any]:
    """What a summary says of one of several models; the run's scores are the means over them."""
    of_run = {key: summary[key] for key in OF_ALL_MODELS if key in summary}
    model = (summary.get("models") or {}).get(about.get("model")) or {}
    scores, saved = model.get("scores") or {}, about.get("backbone")
    if saved not in scores:
        return of_run
    others = {name: of for name, of in scores.items() if name != saved}
    before = {"untrained": summary["untrained"]} if "untrained" in summary else {}
    return {**scores[saved], **others, "backbone": saved, **before, **of_run}
