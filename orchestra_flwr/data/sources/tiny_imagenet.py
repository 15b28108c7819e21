"""TinyImageNet, in the layout of its archive."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestra_flwr.console.printable import printable
from orchestra_flwr.data.image_files import FileOptions
from orchestra_flwr.data.image_files.archive import Archive, ImageFile, wrong_root
from orchestra_flwr.data.image_files.image_rows import Contents, Rows, load_files
from orchestra_flwr.data.images import Dataset
from orchestra_flwr.data.sources import Source

LAYOUT = "train/<class>/images/*, val/images/* and val/val_annotations.txt"
LIST = "val/val_annotations.txt"


class TinyImagenet(Source):
    """100,000 training images of 64 x 64 pixels, 200 classes (Le and Yang, 2015).

    Its test images have no public labels: the 10,000 of `val` are the test images here.
    """

    classes = 200
    Settings = FileOptions

    def load(self) -> Dataset:
        """Reads them from `data.root`: the folder `tiny-imagenet-200`, the one around it or a zip.

        Raises:
            ConfigError: the root is not given, is missing or has another layout.
        """
        root = self.settings.place(f"the unpacked folder or the zip of data={self.data.name}")
        with Archive(root) as archive:
            contents = _contents(root, archive)
            return load_files(contents, root, self.data, self.settings, self.listed)


def _contents(root: Path, archive: Archive) -> Contents:
    """Training files by their folders, validation files by the list."""
    train: list[tuple[ImageFile, str | None]] = []
    validation: dict[str, ImageFile] = {}
    outer = ""
    for file in archive.files():
        match file.parts:
            case (*above, "train", class_, "images", _):
                train.append((file, class_))
                outer = "".join(f"{folder}/" for folder in above)
            case (*_, "val", "images", name):
                validation[name] = file
    if not train or not validation:
        missing = "validation" if train else "training"
        raise wrong_root(root, f"holds no {missing} images of TinyImageNet; expected {LAYOUT}")
    classes = sorted({class_ for _, class_ in train if class_})
    listed = _listed(root, archive, outer + LIST)
    for name in validation:
        if listed.get(name) not in classes:
            raise wrong_root(root, f"{LIST} gives {printable(name)} no class that train/ has")
    test = [(file, listed[name]) for name, file in validation.items()]
    shown = tuple(map(printable, classes))
    train_rows, test_rows = (Rows.of_files(archive, files, classes) for files in (train, test))
    class_of = {file.name: class_ for file, class_ in test}

    def identity(names: Sequence[str]) -> list[Any]:  # their paths do not say their classes
        return [test_rows.identity(names), [class_of[name] for name in names]]

    return Contents(train_rows, replace(test_rows, identity=identity), shown)


def _listed(root: Path, archive: Archive, name: str) -> dict[str, str]:
    """The classes of the validation images, by the names of their files."""
    try:
        lines = archive.read(name).decode().splitlines()
    except Exception:  # a damaged zip raises all kinds of errors
        raise wrong_root(root, f"{name} is missing or cannot be read; expected {LAYOUT}") from None
    columns = [line.split("\t") for line in lines]
    return {line[0]: line[1] for line in columns if len(line) > 1}
