"""Image files on disk: archives, class folders, decoding, and the cache of decoded images."""

from pathlib import Path

from pydantic import Field

from orchestra_flwr.config import ConfigError, Section
from orchestra_flwr.files import at_home


class CacheOptions(Section):
    """Options of the sources whose images are decoded once."""

    cache: str | None = None  # folder for decoded images; None: in the user's cache folder


class GroupOptions(CacheOptions):
    """Options of the sources that know the owner of each image."""

    group: str | None = None  # the column that names the owner, for partition=groups
    groups: int | None = Field(None, ge=1)  # at most this many owners; None: all


class FileOptions(CacheOptions):
    """Options of the sources that read files."""

    root: str | None = None  # where the images are; CIFAR's default is a folder in the cache

    def place(self, what: str) -> Path:
        """Where the images are.

        Raises:
            ConfigError: data.root is not set; `what` says which images it must name.
        """
        if not self.root:
            raise ConfigError(f"data.root must name {what}")
        return at_home(self.root)
