"""A user's own images: a folder or a zip file, with class folders or without labels."""

from pathlib import Path

from orchestra_flwr.config import DataConfig
from orchestra_flwr.data.image_files import FileOptions
from orchestra_flwr.data.image_files.archive import Archive
from orchestra_flwr.data.image_files.class_folders import arrange, survey
from orchestra_flwr.data.image_files.image_rows import load_files
from orchestra_flwr.data.images import Dataset
from orchestra_flwr.data.sources import Source, within_limits


class ImageFolder(Source):
    """The images below `data.root`, whatever their sizes, colour modes and formats."""

    Settings = FileOptions

    @classmethod
    def label(cls, settings: FileOptions) -> str:
        """The folder's name, so that two folders have two labels."""
        name = Path(settings.root or "").name.removesuffix(".zip")
        return f"image_folder-{name}" if name else ""

    @classmethod
    def survey(cls, data: DataConfig) -> tuple[int, int, int] | None:
        """By the files, within the limits of `data`; test images have labels."""
        root = data.settings.root
        if not root:
            return None
        return within_limits(data, *survey(root))

    def load(self) -> Dataset:
        """Decodes the images, or reads them from the cache.

        Raises:
            ConfigError: the root is not given, missing, empty or laid out otherwise, or no image
                can be read.
        """
        root = self.settings.place(f"a folder or a zip of images for data={self.data.name}")
        with Archive(root) as archive:
            contents = arrange(root, archive)
            return load_files(contents, root, self.data, self.settings, self.listed)
