"""One client for each group of files, by folders or by a table: a session, a camera, a person."""

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from orchestra_flwr.config import ConfigError, Section
from orchestra_flwr.console.printable import printable
from orchestra_flwr.data.image_files.file_table import read_file_table, values_by_file
from orchestra_flwr.data.images import ImageSet
from orchestra_flwr.data.partitions.by_class import ByClass


class Groups(ByClass):
    """A client holds all images of a group and has its name.

    With folders of classes that hold folders of sessions, `train/<class>/<session>/*.jpg`, folders
    of one name are one session, whatever their class.
    """

    class Settings(Section):
        level: int = Field(1, ge=1)  # the folder that names the group: 1 the image's, 2 the next up
        csv: str | None = None  # a table with the columns file (below data.root) and group, instead

    without_pixels = True
    rule: ClassVar[str] = "partition=groups has one client for each of the {} groups"

    @classmethod
    def unread(cls, config: Any) -> dict[str, str]:
        """With a table, folders are not read."""
        table = config.partition.settings.csv is not None
        level = {"partition.level": "with partition.csv"} if table else {}
        return {**super().unread(config), **level}

    def groups(self, images: ImageSet) -> tuple[Tensor | None, tuple[str, ...]]:
        """The group of each image, from the path of its file.

        Raises:
            ConfigError: the images are no files, a file has no group, the table cannot be read, or
                the name of a group is not one that a client can have.
        """
        if not images.files:
            raise ConfigError("partition=groups: needs images in files; use data=image_folder")
        if self.settings.csv is None:
            groups = [_folder(file, self.settings.level) for file in images.files]
        else:
            groups = _looked_up(images.files, self.settings.csv)
        names = sorted(set(groups))
        for name in names:
            if name in ("", ".", "..") or "/" in name or printable(name) != name:
                raise ConfigError(
                    f"partition=groups: {printable(name)!r} cannot be a client's name, "
                    "which must be a valid name of a folder"
                )
        index = {name: position for position, name in enumerate(names)}
        return torch.tensor([index[group] for group in groups]), tuple(names)


def _folder(file: str, level: int) -> str:
    folders = PurePosixPath(file).parts[:-1]
    if len(folders) < level:
        raise ConfigError(
            f"partition.level={level}: {printable(file)} lies in {len(folders)} folders below "
            f"data.root; every image must lie in {level} or more"
        )
    return folders[-level]


def _looked_up(files: Sequence[str], path: str) -> list[str]:
    listed = read_file_table("partition.csv", path, ("file", "group"))
    table = values_by_file(f"partition.csv={path}", "group", listed, files)
    missing = [file for file in files if file not in table]
    if missing:
        raise ConfigError(
            f"partition.csv={path}: has no line for {len(missing)} of {len(files)} images, "
            f"such as {printable(missing[0])}"
        )
    return [table[file] for file in files]
