"""The run's configuration: typed, frozen, checked before anything starts.

The only package that reads Hydra's files. Everything else sees a :class:`Config`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from orchestra_flwr.config.choice import Choice, Plugin
from orchestra_flwr.config.renamed import migrated, renamed
from orchestra_flwr.config.run import Config, requested_plugins
from orchestra_flwr.config.section import (
    Composed,
    ConfigError,
    OptionalPathText,
    PathText,
    Section,
    parse,
    path_keys,
)
from orchestra_flwr.config.sections import (
    KEPT_ROUNDS,
    AugmentationConfig,
    DataConfig,
    Device,
    EvaluationConfig,
    FederationConfig,
    LoggingConfig,
    MethodConfig,
    ModelConfig,
    Normalisation,
    Precision,
    PrivacyConfig,
    ScoresConfig,
    TermConfig,
    TrainingConfig,
    Wire,
    WithPlugins,
)

if TYPE_CHECKING:
    from orchestra_flwr.config.compose import (
        config_to_yaml,
        described,
        load,
        load_config,
    )
    from orchestra_flwr.config.config_file import read_config_file
    from orchestra_flwr.config.evaluate import EvaluateConfig, OfSavedEncoder, SavedEncoderConfig
    from orchestra_flwr.config.overrides import override_text, swept_values
    from orchestra_flwr.config.resume import MAY_GROW, RESUME_MAY_CHANGE, is_free
    from orchestra_flwr.config.translate import conf_dir
    from orchestra_flwr.config.unread import without_unread
else:
    # These read files with Hydra. Clients get a configuration as JSON and do without its import.
    _BY_HYDRA = {
        "config_to_yaml": "compose",
        "described": "compose",
        "load": "compose",
        "load_config": "compose",
        "read_config_file": "config_file",
        "EvaluateConfig": "evaluate",
        "OfSavedEncoder": "evaluate",
        "SavedEncoderConfig": "evaluate",
        "override_text": "overrides",
        "swept_values": "overrides",
        "MAY_GROW": "resume",
        "RESUME_MAY_CHANGE": "resume",
        "is_free": "resume",
        "conf_dir": "translate",
        "without_unread": "unread",
    }

    def __getattr__(name: str) -> object:
        if name not in _BY_HYDRA:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_BY_HYDRA[name]}"), name)


__all__ = [
    "KEPT_ROUNDS",
    "MAY_GROW",
    "RESUME_MAY_CHANGE",
    "AugmentationConfig",
    "Choice",
    "Composed",
    "Config",
    "ConfigError",
    "DataConfig",
    "Device",
    "EvaluateConfig",
    "EvaluationConfig",
    "FederationConfig",
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
    "TermConfig",
    "TrainingConfig",
    "Wire",
    "WithPlugins",
    "conf_dir",
    "config_to_yaml",
    "described",
    "is_free",
    "load",
    "load_config",
    "migrated",
    "override_text",
    "parse",
    "path_keys",
    "read_config_file",
    "renamed",
    "requested_plugins",
    "swept_values",
    "without_unread",
]
