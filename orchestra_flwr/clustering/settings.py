"""The keys of the section `clustering`, which methods that cluster read."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from orchestra_flwr.config import Config, ConfigError, Section, parse

MOST_POINTS = 2**14  # clustering compares all with all of them: 2 GB of distances


class ClusteringSettings(Section):
    """Local and global clustering (the paper's L, G and memory)."""

    name: Literal["sinkhorn", "private", "features"] = "sinkhorn"
    global_clusters: int = Field(32, ge=2, le=MOST_POINTS)
    local_clusters: int = Field(8, ge=2, le=MOST_POINTS)
    memory: int = Field(128, ge=2, le=MOST_POINTS)
    solver: Literal["alternating", "gradient"] = "alternating"
    damping: float = Field(0.5, ge=0, lt=1)  # of the alternating solver


def clustering_settings(config: Config) -> ClusteringSettings:
    """The section `clustering`, and that it agrees with `privacy`.

    Raises:
        ConfigError: names the key, its value and what is allowed.
    """
    settings = parse(ClusteringSettings, config.clustering.options, "clustering")
    privacy, private = config.privacy, settings.name == "private"
    if privacy.k_min > settings.memory and not private:
        raise ConfigError(
            f"privacy.k_min={privacy.k_min}: must be at most clustering.memory={settings.memory}, "
            "the images that local clustering sees"
        )
    # Who shares features must say so twice: nobody gets there by one slip.
    if settings.name == "features" and privacy.k_min != 1:
        raise ConfigError(
            f"privacy.k_min={privacy.k_min}: must be 1 with clustering=features, "
            "which sends the features of single images and is NOT PRIVATE"
        )
    if private and privacy.epsilon is None:
        raise ConfigError("privacy.epsilon: must be given with clustering=private")
    for name in ("epsilon", "total_epsilon", "dimensions"):
        value = getattr(privacy, name)
        if value is not None and not private:
            raise ConfigError(f"privacy.{name}={value:g}: needs clustering=private")
    epsilon, total, dimensions = privacy.epsilon, privacy.total_epsilon, privacy.dimensions
    if epsilon is not None and total is not None and total < epsilon:
        raise ConfigError(
            f"privacy.total_epsilon={total:g}: must be at least privacy.epsilon={epsilon:g}"
        )
    if dimensions is not None and dimensions >= config.model.projector_dim:
        raise ConfigError(
            f"privacy.dimensions={dimensions}: must be below "
            f"model.projector_dim={config.model.projector_dim}"
        )
    return settings
