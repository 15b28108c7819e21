"""The run's configuration: typed, frozen, checked before anything starts.

The subpackage `reading` makes a :class:`Config` from files and command lines.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from orchestra_flwr.config.choice import Plugin
from orchestra_flwr.config.choices import DataConfig, MethodConfig, ModelConfig
from orchestra_flwr.config.run import Config, requested_plugins
from orchestra_flwr.config.section import (
    Composed,
    ConfigError,
    OptionalPathText,
    PathText,
    Section,
    parse,
    path_keys,
    required,
    why_unread,
)
from orchestra_flwr.config.sections import (
    KEPT_ROUNDS,
    AugmentationConfig,
    BatchNorm,
    Device,
    EvaluationConfig,
    LogFormat,
    LoggingConfig,
    Normalisation,
    Precision,
    PrivacyConfig,
    ScoresConfig,
    TrainingConfig,
    Wire,
)
from orchestra_flwr.config.user_packages import WithPlugins

if TYPE_CHECKING:
    from orchestra_flwr.config.evaluate import EvaluateConfig, OfSavedEncoder, SavedEncoderConfig
    from orchestra_flwr.config.reading.compose import (
        described,
        load,
        load_config,
        without_options_of_others,
        without_unread,
    )
    from orchestra_flwr.config.reading.hydra_overrides import conf_dir
    from orchestra_flwr.config.reading.overrides import override_text, swept_values
    from orchestra_flwr.config.reading.resume import (
        MAY_GROW,
        RESUME_MAY_CHANGE,
        WITHOUT_EFFECT,
        is_free,
    )
    from orchestra_flwr.config.reading.saved_config import (
        config_to_yaml,
        read_config_file,
        read_run,
    )
else:
    # Clients get a configuration as JSON, and need not import Hydra, as the last four do.
    _IMPORTED_LATER = (
        *("evaluate", "reading.saved_config", "reading.resume"),
        *("reading.overrides", "reading.hydra_overrides", "reading.compose"),
    )

    def __getattr__(name: str) -> object:
        for module in _IMPORTED_LATER if name in __all__ else ():
            imported = import_module(f"{__name__}.{module}")
            if hasattr(imported, name):
                return getattr(imported, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "KEPT_ROUNDS",
    "MAY_GROW",
    "RESUME_MAY_CHANGE",
    "WITHOUT_EFFECT",
    "AugmentationConfig",
    "BatchNorm",
    "Composed",
    "Config",
    "ConfigError",
    "DataConfig",
    "Device",
    "EvaluateConfig",
    "EvaluationConfig",
    "LogFormat",
    "LoggingConfig",
    "MethodConfig",
    "ModelConfig",
    "Normalisation",
    "OfSavedEncoder",
    "OptionalPathText",
    "PathText",
    "Plugin",
    "Precision",
    "PrivacyConfig",
    "SavedEncoderConfig",
    "ScoresConfig",
    "Section",
    "TrainingConfig",
    "Wire",
    "WithPlugins",
    "conf_dir",
    "config_to_yaml",
    "described",
    "is_free",
    "load",
    "load_config",
    "override_text",
    "parse",
    "path_keys",
    "read_config_file",
    "read_run",
    "requested_plugins",
    "required",
    "swept_values",
    "why_unread",
    "without_options_of_others",
    "without_unread",
]
