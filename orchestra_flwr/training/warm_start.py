"""What a run begins with; a warm start with the encoder of another one (`init=`)."""

from __future__ import annotations

from orchestra_flwr.config import Config, ConfigError
from orchestra_flwr.models import Backbone, Encoder, EncoderSpec, load_encoder
from orchestra_flwr.models.batch_norm import check_frozen
from orchestra_flwr.training.learner import Learner, build_learner


def starting_learner(config: Config, channels: int, *, begun: bool = False) -> Learner:
    """What a run begins with: weights from its seed, those that the model names, those of `init`.

    Only who begins a run needs them; everybody else is sent what has become of them. Every
    backbone of the method begins with the encoder of `init`, a target as well; heads and what
    terms add are drawn.

    Args:
        config: of the run.
        channels: of its images.
        begun: whether the run goes on: its state is in the checkpoint, and nothing is read here.

    Raises:
        ConfigError: it cannot be built, the model's weights cannot be had, or `init` is no encoder
            or one of another kind than the run's; there are no statistics to be frozen.
    """
    learner = build_learner(config, channels)
    if begun:
        return learner
    encoder = initial_encoder(config)
    if encoder is not None:
        weights = encoder.backbone.state_dict()
        for module in learner.method.modules():
            if isinstance(module, Backbone):
                module.load_state_dict(weights)
    for backbone in learner.method.backbones().values():
        if encoder is None:
            backbone.load_weights()
        check_frozen(backbone)
    return learner


def initial_encoder(config: Config) -> Encoder | None:
    """The encoder that `init` names; None: the run begins with weights drawn from its seed.

    Raises:
        ConfigError: it cannot be read, or is of another kind than the run's encoders.
    """
    if config.init is None:
        return None
    try:
        encoder = load_encoder(config.init, plugins=config.plugins)
    except (OSError, ValueError) as error:
        raise ConfigError(f"init={config.init}: {error}") from None
    saved, wanted = _kind(encoder.spec), _kind(EncoderSpec.of(config))
    for key, value in wanted.items():
        if saved.get(key) != value:
            raise ConfigError(
                f"init={config.init}: its encoder has {key}={saved.get(key)}, this run "
                f"{key}={value}; they must be equal"
            )
    return encoder


def _kind(spec: EncoderSpec) -> dict[str, object]:
    """What two encoders must have in common, by the keys of a run; heads are no part of one."""
    model = {"name": spec.model.name, "norm": spec.model.norm, "width": spec.model.width}
    own = spec.model.settings.model_dump(exclude={*spec.model.plugin.first_weights})
    return {
        "model": model.pop("name"),
        **{f"model.{key}": value for key, value in {**model, **own}.items()},
        "model.groups": spec.model.groups,
        "data.image_size": spec.image_size,
        "data.normalise": spec.normalise,
        "data's channels": spec.channels,
    }
