"""A run's adapters alone, in a folder that peft itself reads (`PeftModel.from_pretrained`)."""

import importlib
import stat
from pathlib import Path
from typing import Any

from torch import Tensor

from orchestra_flwr.config import Config, ConfigError, read_run
from orchestra_flwr.export.export_config import ExportConfig
from orchestra_flwr.extras import require
from orchestra_flwr.files import read_json
from orchestra_flwr.methods import build_method, ordered_backbones
from orchestra_flwr.models import encoder_of
from orchestra_flwr.models.adaptations.lora import ADAPTER, LoRA
from orchestra_flwr.tensor_files import load_tensors
from orchestra_flwr.training import first_weights

WEIGHTS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"  # peft's names
NETWORK = "model."  # prefix of the names of a backbone's tensors


def export_to_peft(config: ExportConfig) -> Path:
    """Writes `adapter_model.safetensors` and `adapter_config.json`; returns their folder.

    The adapters are those of the saved encoder's backbone after the last round. They fit timm's
    network without a classifier and with the weights that the run began with.

    Raises:
        ConfigError: no run of adaptation=lora on a network of timm with weights that others have,
            or its encoder is of an earlier round than its checkpoint.
        OSError: a file cannot be read or written.
    """
    require("format=peft", "timm", "peft")
    run = _run_of(config)
    adapters = _adapters(run, config.encoder.parent / "checkpoint" / "state.safetensors")
    layers = sorted({name.partition(f".{ADAPTER}")[0] for name in adapters})
    network = encoder_of(config).backbone.get_submodule("model")
    adaptation: Any = run.adaptation.build()
    peft: Any = importlib.import_module("peft")
    model = peft.get_peft_model(network, adaptation.peft_config(layers))
    missing = model.base_model.model.load_state_dict(adapters, strict=False)
    if missing.unexpected_keys:
        raise ConfigError(f"run={config.run}: its checkpoint is of another network")
    config.exported.mkdir(parents=True, exist_ok=True)
    model.create_or_update_model_card = lambda _folder: None  # a form with nothing filled in
    model.save_pretrained(str(config.exported))
    # safetensors makes its file readable by the owner alone, whatever the umask.
    permissions = (config.exported / SETTINGS).stat().st_mode
    (config.exported / WEIGHTS).chmod(stat.S_IMODE(permissions))
    return config.exported


def _run_of(config: ExportConfig) -> Config:
    """The configuration of a run whose encoder is its network with its last adapters."""
    folder = config.encoder.parent
    if not (folder / "config.yaml").is_file():
        raise ConfigError(f"format=peft: {folder} is no run folder, which would have the adapters")
    run = read_run(folder, config.plugins)
    if run.adaptation.plugin is not LoRA or run.model.name != "timm":
        raise ConfigError(
            f"format=peft: the run has model={run.model.name} adaptation={run.adaptation.name}, "
            "must have model=timm adaptation=lora"
        )
    if run.init is not None or first_weights(run) is None:
        begun = "random weights" if run.init is None else f"the weights of init={run.init}"
        raise ConfigError(
            f"format=peft: the run began with {begun}, must begin with model.weights= of a network "
            "that users of its adapters have; format=timm writes the whole network"
        )
    summary = read_json(folder / "summary.json")
    best = summary.get("kept_round", summary["rounds"])
    if best != summary["rounds"]:
        raise ConfigError(
            f"format=peft: the run kept the encoder after round {best} (evaluation.keep=best), and "
            f"has the adapters of round {summary['rounds']} alone; format=timm writes it whole"
        )
    return run


def _adapters(run: Config, checkpoint: Path) -> dict[str, Tensor]:
    """The adapters of the backbone that is saved, by their names in timm's network."""
    method = build_method(run, run.data.channels)
    saved = next(iter(ordered_backbones(method, run.evaluation.backbone).values()))
    (path,) = (path for path, module in method.named_modules() if module is saved)
    state, _ = load_tensors(checkpoint)
    prefix = f"{path}.{NETWORK}"
    adapters = {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}
    if not adapters:
        raise ConfigError(f"format=peft: {checkpoint} has no adapters, or several models")
    return adapters
