"""The run's configuration: typed, frozen, checked before anything starts.

The only package that reads Hydra's files. Everything else sees a :class:`Config`.
"""

from orchestra_flwr.config.compose import conf_dir, config_to_yaml, every_key, load, load_config
from orchestra_flwr.config.section import Composed, ConfigError, Section, parse
from orchestra_flwr.config.sections import (
    AugmentationConfig,
    ClusteringConfig,
    Config,
    DataConfig,
    EvaluationConfig,
    FederationConfig,
    LoggingConfig,
    MethodConfig,
    ModelConfig,
    PartitionConfig,
    Precision,
    PrivacyConfig,
    RayConfig,
    TrainingConfig,
    Wire,
    known_device,
)

__all__ = [
    "AugmentationConfig",
    "ClusteringConfig",
    "Composed",
    "Config",
    "ConfigError",
    "DataConfig",
    "EvaluationConfig",
    "FederationConfig",
    "LoggingConfig",
    "MethodConfig",
    "ModelConfig",
    "PartitionConfig",
    "Precision",
    "PrivacyConfig",
    "RayConfig",
    "Section",
    "TrainingConfig",
    "Wire",
    "conf_dir",
    "config_to_yaml",
    "every_key",
    "known_device",
    "load",
    "load_config",
    "parse",
]
