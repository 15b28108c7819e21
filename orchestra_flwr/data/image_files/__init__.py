"""Image files on disk: archives, class folders, decoding, and the cache of decoded images."""

from orchestra_flwr.config import Section


class CacheOptions(Section):
    """Options of the sources whose images are decoded once."""

    cache: str | None = None  # folder for decoded images; None: in the user's cache folder


class FileOptions(CacheOptions):
    """Options of the sources that read files."""

    root: str | None = None  # where the images are; CIFAR's default is a folder in the cache
