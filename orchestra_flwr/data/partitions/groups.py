"""One client for each group of files, by folders or by a table: a session, a camera, a person."""

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from orchestra_flwr.config import ConfigError, Section
from orchestra_flwr.console.printable import printable
from orchestra_flwr.data.image_files.file_table import read_file_table
from orchestra_flwr.data.images import ImageSet
from orchestra_flwr.data.partitions import Indices, Partition


class _Settings(Section):
    level: int = Field(1, ge=1)  # which folder names the group: 1 that of the image, 2 the next up
    csv: str | None = None  # a table with the columns file (below data.root) and group, instead


class Groups(Partition):
    """A client holds all images of a group and has its name.

    With folders of classes that hold folders of sessions, `train/<class>/<session>/*.jpg`, folders
    of one name are one session, whatever their class.
    """

    Settings = _Settings
    without_pixels = True

    @classmethod
    def unread(cls, config: Any) -> dict[str, str]:
        """With a table folders play no part."""
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
                    "which must be that of a folder"
                )
        index = {name: position for position, name in enumerate(names)}
        return torch.tensor([index[group] for group in groups]), tuple(names)

    def split(self, labels: Tensor | None, count: int, clients: int, seed: int) -> list[Indices]:
        """The images of each group, in the order of the groups' names.

        Raises:
            ConfigError: there are not as many clients as groups.
        """
        assert labels is not None  # needs_labels
        groups = int(labels.max()) + 1
        if groups != clients:
            raise ConfigError(
                f"federation.clients={clients}: partition=groups has one client for each of the "
                f"{groups} groups"
            )
        return [(labels == group).nonzero().squeeze(1).cpu().numpy() for group in range(groups)]

    def names(self, classes: tuple[str, ...], labels: Tensor | None, clients: int) -> list[str]:
        """The names of the groups."""
        return list(classes)


def _folder(file: str, level: int) -> str:
    folders = PurePosixPath(file).parts[:-1]
    if len(folders) < level:
        raise ConfigError(
            f"partition.level={level}: {printable(file)} lies in {len(folders)} folders below "
            "data.root; every image must lie in as many or more"
        )
    return folders[-level]


def _looked_up(files: Sequence[str], path: str) -> list[str]:
    table = read_file_table("partition.csv", path, ("file", "group"))
    missing = [file for file in files if file not in table]
    if missing:
        raise ConfigError(
            f"partition.csv={path}: has no line for {len(missing)} of {len(files)} images, "
            f"such as {printable(missing[0])}"
        )
    return [table[file] for file in files]
