"""Any image model of timm as a backbone (https://huggingface.co/docs/timm)."""

import difflib
import importlib
import logging
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from orchestra_flwr.config import Config, ConfigError, ModelConfig, Section
from orchestra_flwr.extras import log_the_hub_once, require
from orchestra_flwr.models.backbones import Backbone, TrainedOn, groups_of
from orchestra_flwr.models.batch_norm import statistics_of
from orchestra_flwr.models.features import evaluation_mode
from orchestra_flwr.models.normalisation import nearest_normalisation
from orchestra_flwr.seeding import seeded

logger = logging.getLogger(__name__)

MAX_SIZE = 512  # of images, in pixels
PUBLISHED = "pretrained"  # in place of a file: the weights that timm has under the model's name
SUFFIX = ".safetensors"


class Timm(Backbone):
    """The model without its classifier; norms and width are its own, not `model.norm` and `.width`.

    Dropout of values, of branches and of attention is off, and so are random changes of positions:
    they would draw from torch's global generator, and the same seed would no longer give the same
    bits.

    Raises:
        ConfigError: the model does not exist, or takes no images of this size.
    """

    class Settings(Section):
        timm: str = "mobilenetv3_small_100"  # of `timm.list_models()`, with a tag or without
        weights: str | None = None  # "pretrained", or a file; None: random ones
        image_size: int = Field(32, ge=8, le=MAX_SIZE)  # height and width of the images, in pixels

    obeys_norm: ClassVar[bool] = False
    first_weights: ClassVar[tuple[str, ...]] = ("weights",)

    def __init__(self, settings: Settings, model: ModelConfig, channels: int) -> None:
        super().__init__(settings, model, channels)
        self._channels = channels
        _check_name(_library(), settings.timm)  # timm itself would load "hf-hub:..." from a network
        try:
            self.model = _created(settings, channels)
        except (AssertionError, ValueError) as error:
            raise _unfit(settings, error) from error
        _without_randomness(self.model)
        self.dim = self._width()

    @classmethod
    def check(cls, config: Config) -> None:
        """Refuses models unknown to timm, images of another size, files that are not weights."""
        settings: Timm.Settings = config.model.settings
        _check_name(_library(), settings.timm)
        check_weights("model.weights", settings.weights)
        super().check(config)

    @classmethod
    def unread(cls, config: Config) -> dict[str, str]:
        """The width is the network's own."""
        return {**super().unread(config), "model.width": "with model=timm"}

    @classmethod
    def trained_on(cls, model: ModelConfig) -> TrainedOn | None:
        """As timm's own configuration of the weights says, at most `MAX_SIZE` pixels.

        Raises:
            ValueError: names the key.
        """
        settings: Timm.Settings = model.settings
        if settings.weights is None:
            return None
        _check_name(_library(), settings.timm)
        images = _library().get_pretrained_cfg(settings.timm, allow_unregistered=True)
        if images is None:
            return None
        size = min(*images.input_size[1:], MAX_SIZE)
        return TrainedOn(size, nearest_normalisation(images.mean, images.std))

    @classmethod
    def has_batch_norm(cls, model: ModelConfig) -> bool:
        """Whether the timm model has BatchNorm; other plug-ins may ask before :meth:`check`.

        Raises:
            ValueError: names the key.
        """
        _check_name(_library(), model.settings.timm)
        return _has_batch_norm(model.settings.timm, model.settings.image_size)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, image_size, image_size) normalised images to (B, dim) features."""
        features: Tensor = self.model(x)
        return features

    def layer_groups(self) -> list[set[str]]:
        """As timm groups the layers; tensors that it puts into no group join the last one.

        For the few networks of which timm knows no groups, as for other backbones.
        """
        if not hasattr(self.model, "group_matcher"):
            return groups_of(self.model, "model.")
        group = importlib.import_module("timm.models").group_parameters
        matcher = self.model.group_matcher()  # type: ignore[operator]
        if isinstance(matcher, dict):
            matcher = {**matcher, "rest": [(".*", (99999,))]}  # timm's number for "as before"
        # Buffers belong to a group as well: only the names count.
        state = SimpleNamespace(named_parameters=self.model.state_dict().items)
        return [{f"model.{name}" for name in names} for names in group(state, matcher).values()]

    def load_weights(self, key: str = "model.weights") -> None:
        """Loads `model.weights`, which timm adapts to the images' channels and size.

        Raises:
            ConfigError: names the key: there is no such file, or its weights do not fit.
        """
        weights = self.settings.weights
        if weights is None:
            return
        file = None if weights == PUBLISHED else weights
        if file and not Path(file).is_file():
            raise ConfigError(f"{key}={file}: no such file")
        source = {"pretrained_cfg_overlay": {"file": file}} if file else {}
        if not file:
            log_the_hub_once()
            _announce_download(self.settings.timm)
        try:
            random, trained = (
                _seeded(self.settings, self._channels, **options).state_dict()
                for options in ({}, {"pretrained": True, **source})
            )
        except Exception as error:  # of the network, the hub's library, or what is in the file
            hint = "is it of this model?" if file else "without internet access, name a file"
            raise self._not_loaded(key, f"{hint} ({_one_line(error)})") from error
        # Buffers may hold fixed tables, which are equal in both.
        names = (name for name, _ in self.model.named_parameters())
        missing = [name for name in names if _is_random(trained[name], random[name])]
        if missing:  # timm leaves what it finds nothing for as it was
            raise self._not_loaded(key, f"is it of this model? It has no {missing[0]}")
        self.model.load_state_dict(trained)

    def _not_loaded(self, key: str, reason: str) -> ConfigError:
        return ConfigError(
            f"{key}={self.settings.weights}: cannot be loaded for "
            f"model.timm={self.settings.timm}, {reason}"
        )

    def _width(self) -> int:
        """The number of features, found by a pass of two black images."""
        size = self.settings.image_size
        parameter = next(self.model.parameters())
        black = torch.zeros(2, self._channels, size, size, device=parameter.device)
        with evaluation_mode(self.model), torch.no_grad():
            try:
                features = self.model(black)
            except (RuntimeError, AssertionError, ValueError) as error:
                if parameter.is_meta:  # it looks at values, which are not there
                    raise
                raise _unfit(self.settings, error) from error
        return int(features.shape[1])


@cache
def _announce_download(name: str) -> None:
    """Says once, however often a run loads them, what may take the next minutes."""
    logger.info("loading the weights of %s; they are downloaded if not yet here", name)


def check_weights(key: str, weights: str | None) -> None:
    """Refuses files that are not safetensors: others may hold code.

    Raises:
        ValueError: names the key.
    """
    if weights is not None and weights != PUBLISHED and not weights.endswith(SUFFIX):
        raise ValueError(f"{key}={weights}: must be null, {PUBLISHED} or a file *{SUFFIX}")


def _library() -> ModuleType:
    """The library timm, if it is installed."""
    require("model=timm", "timm", "timm")
    timm: ModuleType = importlib.import_module("timm")
    return timm


def _created(settings: Timm.Settings, channels: int, **options: Any) -> nn.Module:
    """The model for images with `channels` and the settings' size, without a classifier.

    A transformer whose position embeddings timm can resample takes smaller views as well, unless
    its patches do not divide the images: timm would refuse these, but else leaves out the rest.
    """
    options |= {"num_classes": 0, **creation_options(settings, channels)}
    create = _library().create_model
    if "img_size" in options:
        generator = torch.get_rng_state()
        with suppress(TypeError):  # no transformer of this kind
            model: nn.Module = create(settings.timm, **options, dynamic_img_size=True)
            patch = getattr(getattr(model, "patch_embed", None), "patch_size", (1, 1))
            if not any(settings.image_size % side for side in patch):
                return model
        torch.set_rng_state(generator)
    plain: nn.Module = create(settings.timm, **options)
    return plain


def creation_options(settings: Timm.Settings, channels: int) -> dict[str, int]:
    """timm's options for the images of a network; with their size where it cannot change later."""
    trained_on = _library().get_pretrained_cfg(settings.timm, allow_unregistered=True)
    has_size = trained_on is not None and trained_on.fixed_input_size
    return {"in_chans": channels} | ({"img_size": settings.image_size} if has_size else {})


def _seeded(settings: Timm.Settings, channels: int, **options: Any) -> nn.Module:
    """:func:`_created` with the same random weights each time; torch's generator stays as it is."""
    with seeded(0):
        return _created(settings, channels, **options)


def _is_random(value: Tensor, random: Tensor) -> bool:
    """Whether these are the random weights; false if all values are equal, as in norms."""
    return torch.equal(value, random) and value.numel() > 1 and bool((value != value.max()).any())


def _check_name(timm: ModuleType, name: str) -> None:
    """Refuses a name that timm does not have, or whose tag it does not have."""
    architecture = name.partition(".")[0]
    if not timm.is_model(architecture):
        close = difflib.get_close_matches(architecture, timm.list_models(), n=3)
        hint = f": did you mean {' or '.join(close)}?" if close else ""
        raise ValueError(
            f"model.timm={name}: timm {timm.__version__} has no model of this name"
            f"{hint or ' (timm.list_models() lists them)'}"
        )
    published = timm.list_pretrained(f"{architecture}.*")
    if name not in (architecture, *published):
        tags = ", ".join(published) or f"{architecture} alone"
        raise ValueError(f"model.timm={name}: timm {timm.__version__} has no such tag, but {tags}")


def _unfit(settings: Timm.Settings, error: Exception) -> ConfigError:
    return ConfigError(
        f"model.timm={settings.timm}: cannot be built for images of {settings.image_size} x "
        f"{settings.image_size} pixels (data.image_size): {_one_line(error)}"
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _without_randomness(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        # `drop_prob` of timm's DropPath and DropBlock; `drop_rate` and the like of networks that
        # call the function instead of a module.
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                vars(module)[name] = 0.0
        if "aug_active" in vars(module):  # rotary embeddings that move and scale their coordinates
            vars(module)["aug_active"] = False


@cache
def _has_batch_norm(name: str, image_size: int) -> bool:
    settings = Timm.Settings(timm=name, image_size=image_size)
    try:
        model = _seeded(settings, 3)
    except (AssertionError, ValueError) as error:
        raise _unfit(settings, error) from error
    return next(statistics_of(model), None) is not None
