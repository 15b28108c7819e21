"""The initial state of a run, or a warm start with the encoder of another one (`init=`)."""

from pathlib import Path

from orchestra_flwr.config import Config, ConfigError
from orchestra_flwr.methods import Method
from orchestra_flwr.models import Backbone, Encoder, EncoderSpec, encoder_at
from orchestra_flwr.models.batch_norm import check_frozen
from orchestra_flwr.training.learner import Learner, build_learner


def starting_learner(config: Config, channels: int, *, begun: bool = False) -> Learner:
    """The learner that a run begins with: weights from its seed, pretrained ones, those of `init`.

    Only the server needs it. All backbones of the method, a target included, begin with the
    encoder of `init`; heads and terms are drawn from the seed.

    Args:
        begun: whether the run is resumed: its state is in the checkpoint, nothing is loaded here.

    Raises:
        ConfigError: it cannot be built, the model's weights cannot be loaded, `init` is no encoder
            or one of another kind than the run's, or there are no statistics to freeze.
    """
    if begun:
        return build_learner(config, channels)
    encoder = initial_encoder(config)

    def load(method: Method) -> None:
        if encoder is not None:
            weights = encoder.backbone.state_dict()
            for module in method.modules():
                if isinstance(module, Backbone):
                    module.load_state_dict(weights)
        for backbone in method.backbones().values():
            if encoder is None:
                backbone.load_weights()
            check_frozen(backbone)

    return build_learner(config, channels, load)


def first_weights(config: Config) -> str | None:
    """What names the trained weights that a run begins with, "<key>=<value>"; None: random ones."""
    sources = {"init": config.init, **config.model.first_weights}
    return next((f"{key}={value}" for key, value in sources.items() if value is not None), None)


def initial_encoder(config: Config) -> Encoder | None:
    """The encoder that `init` names; None: the run begins with weights drawn from its seed.

    Raises:
        ConfigError: it cannot be read, or is of another kind than the run's encoders.
    """
    if config.init is None:
        return None
    encoder = encoder_at(f"init={config.init}", Path(config.init), plugins=config.plugins)
    saved, wanted = _kind(encoder.spec), _kind(EncoderSpec.of(config))
    for key, value in wanted.items():
        if saved.get(key) != value:
            raise ConfigError(
                f"init={config.init}: its encoder has {key}={saved.get(key)}, this run "
                f"{key}={value}; they must be equal"
            )
    return encoder


def _kind(spec: EncoderSpec) -> dict[str, object]:
    """What two encoders must have in common, by the keys of a run."""
    model = spec.model
    options = model.settings.model_dump(exclude={*model.plugin.first_weights})
    return {
        "model": model.name,
        "model.norm": model.norm,
        "model.width": model.width,
        **{f"model.{key}": value for key, value in options.items()},
        "model.groups": model.groups,
        "data.image_size": spec.image_size,
        "data.normalise": spec.normalise,
        "data's channels": spec.channels,
    }
