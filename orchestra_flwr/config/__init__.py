"""The run's configuration: typed, frozen, checked before anything starts.

The only package that reads Hydra's files. Everything else sees a :class:`Config`.
"""

from orchestra_flwr.config.choice import Choice, Plugin
from orchestra_flwr.config.compose import config_to_yaml, every_key, load, load_config
from orchestra_flwr.config.config_file import read_config_file
from orchestra_flwr.config.evaluate import EvaluateConfig, SavedEncoderConfig
from orchestra_flwr.config.renamed import migrated, renamed
from orchestra_flwr.config.resume import RESUME_MAY_CHANGE
from orchestra_flwr.config.run import Config, requested_plugins
from orchestra_flwr.config.section import (
    Composed,
    ConfigError,
    OptionalPathText,
    PathText,
    Section,
    parse,
)
from orchestra_flwr.config.sections import (
    AugmentationConfig,
    DataConfig,
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
    known_device,
)
from orchestra_flwr.config.translate import conf_dir

__all__ = [
    "RESUME_MAY_CHANGE",
    "AugmentationConfig",
    "Choice",
    "Composed",
    "Config",
    "ConfigError",
    "DataConfig",
    "EvaluateConfig",
    "EvaluationConfig",
    "FederationConfig",
    "LoggingConfig",
    "MethodConfig",
    "ModelConfig",
    "Normalisation",
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
    "every_key",
    "known_device",
    "load",
    "load_config",
    "migrated",
    "parse",
    "read_config_file",
    "renamed",
    "requested_plugins",
]
