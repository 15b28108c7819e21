"""Low-rank changes of the weights are trained, by the library peft."""

import importlib
import re
from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field

from orchestra_flwr.config import Config, ConfigError, Section
from orchestra_flwr.extras import require
from orchestra_flwr.models.adaptations import Adaptation
from orchestra_flwr.models.backbones import Backbone

# Layers that use their weights as they are; others (standardised ones) could not be merged.
LAYERS = ("Linear", "Conv2d", "Convolution", "Conv2dSame")
UNDILATED = 1, 1  # peft's adapters of dilated convolutions would have maps of another size
ATTENTION = "qkv"  # the layer that transformers here and in timm have for queries, keys and values
ADAPTER = "lora_"  # in the names of added parameters
DOWN, UP = ".lora_A.", ".lora_B."


class LoRA(Adaptation):
    """W + alpha / rank * B A for chosen weights W (n, m), with B (n, rank) and A (rank, m).

    Hu et al., "LoRA", ICLR 2022 (arXiv 2106.09685). A is random, and B is 0: a run begins with the
    network's own features. The mean of products is not the product of means; with `alternate`
    clients train B in odd rounds and A in even ones, and the mean is exact: Chen et al., "Robust
    Federated Finetuning of LLMs via Alternating Optimization of LoRA", NeurIPS 2025 (arXiv
    2502.01755).
    """

    class Settings(Section):
        rank: int = Field(8, ge=1, le=4096)
        alpha: float = Field(16, gt=0)  # the change is scaled by alpha / rank
        # Last parts of layers' names; None: queries, keys and values, or all layers without these.
        layers: tuple[str, ...] | None = None
        alternate: bool = False  # train B and A in turns

    settings: Settings

    @classmethod
    def check(cls, config: Config) -> None:
        """Refuses a missing peft, and options that change the half that a round does not train."""
        require("adaptation=lora", "timm", "peft")
        if not config.adaptation.settings.alternate:
            return
        optimizer, merging, exchange = config.server_optimizer, config.merging, config.exchange
        own, different = "have halves of their own", "have different halves in a round"
        refused = {
            f"server_optimizer={optimizer.name}, which moves both halves": optimizer.name != "mean",
            "training.optimizer_state=keep, because the halves have different gradients": (
                config.training.optimizer_state == "keep"
            ),
            f"merging={merging.name}, whose clients {own}": merging.plugin.remembers,
            f"exchange={exchange.name}, whose nodes {own}": exchange.plugin.averages,
            f"exchange={exchange.name}, whose nodes {different}": not exchange.plugin.synchronous,
        }
        for choice, is_refused in refused.items():
            if is_refused:
                raise ValueError(f"adaptation.alternate=true: must be false with {choice}")

    def prepare(self, backbone: Backbone) -> None:
        """Puts A and B beside the chosen layers.

        Raises:
            ConfigError: there is none.
        """
        config = self.peft_config(self._chosen(backbone))
        importlib.import_module("peft").inject_adapter_in_model(config, backbone)
        _add_bias_apart(backbone, True)
        backbone.to(memory_format=torch.channels_last)

    def peft_config(self, layers: Sequence[str]) -> Any:
        """peft's own description of adapters of some layers, named by their paths."""
        return importlib.import_module("peft").LoraConfig(
            r=self.settings.rank,
            lora_alpha=self.settings.alpha,
            target_modules="|".join(map(re.escape, layers)),
        )

    def rests(self, name: str, round_: int) -> bool:
        """With `alternate` one half is trained; B first: without it A has no gradient."""
        return self.settings.alternate and (UP if round_ % 2 else DOWN) not in name

    def merge(self, backbone: Backbone) -> None:
        """Adds the products to the weights."""
        for path, module in [*backbone.named_modules()]:
            if hasattr(module, "get_base_layer"):
                module.merge()
                backbone.set_submodule(path, module.get_base_layer())
        _add_bias_apart(backbone, False)

    def trained(self, backbone: Backbone) -> set[str]:
        return {name for name in backbone.state_dict() if ADAPTER in name}

    def _chosen(self, backbone: Backbone) -> list[str]:
        """Paths of the layers."""
        adaptable = [
            path
            for path, module in backbone.named_modules()
            if type(module).__name__ in LAYERS
            and getattr(module, "groups", 1) == 1
            and getattr(module, "dilation", UNDILATED) == UNDILATED
        ]
        layers = self.settings.layers
        chosen = [path for path in adaptable if _ends(path, layers or (ATTENTION,))]
        if layers is None and not chosen:
            chosen = adaptable
        if not chosen:
            ends = sorted({path.rpartition(".")[2] for path in adaptable})
            raise ConfigError(
                f"adaptation.layers={list(layers or ())}: the network has no such layer, but "
                f"{', '.join(ends) or 'none at all'}"
            )
        return chosen


def _add_bias_apart(backbone: Backbone, apart: bool) -> None:
    """Has BEiT, EVA and Swin v2 of timm add the bias of queries and values in a step of its own.

    Otherwise they take the layer's weights, past its adapter.
    """
    for module in backbone.modules():
        if "qkv_bias_separate" in vars(module):
            vars(module)["qkv_bias_separate"] = apart


def _ends(path: str, ends: tuple[str, ...]) -> bool:
    return any(path == end or path.endswith(f".{end}") for end in ends)
