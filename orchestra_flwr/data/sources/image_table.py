"""Images in a folder or a zip that a table lists, with their labels and owners."""

from collections import Counter
from dataclasses import dataclass
from logging import getLogger
from pathlib import PurePosixPath

from orchestra_flwr.config import ConfigError, DataConfig
from orchestra_flwr.console.printable import printable
from orchestra_flwr.data.image_files import FileOptions, GroupOptions
from orchestra_flwr.data.image_files.archive import Archive, ImageFile
from orchestra_flwr.data.image_files.file_table import named_files, read_table
from orchestra_flwr.data.image_files.image_rows import Classes, Contents, Rows, load_rows
from orchestra_flwr.data.images import Dataset
from orchestra_flwr.data.sources import Source, within_limits
from orchestra_flwr.files import at_home, folder_name

logger = getLogger("orchestra_flwr.data")

SEVERAL = ";"  # between the labels of one image


@dataclass(frozen=True)
class _Lines:
    """The images that a table lists."""

    files: list[ImageFile]  # those that exist
    labels: list[str]  # the label cell of each; empty without a column of labels
    groups: list[str] | None  # the owner of each; None without such a column


class ImageTable(Source):
    """The images below `data.root` that `data.table` lists; others are left out."""

    class Settings(FileOptions, GroupOptions):
        table: str | None = None  # of the training images, CSV
        test_table: str | None = None
        file: str = "file"  # names of columns
        label: str | None = "label"

    @classmethod
    def label(cls, settings: Settings) -> str:
        """The table's name, so that two tables have two labels."""
        return f"image_table-{PurePosixPath(settings.table).stem}" if settings.table else ""

    @classmethod
    def survey(cls, data: DataConfig) -> tuple[int, int, int] | None:
        """By the lines of the tables, within the limits of `data`."""
        options = data.settings
        if not options.table:
            return None
        images, labelled = _counted("data.table", options.table, options)
        tests = 0
        if options.test_table:
            _, tests = _counted("data.test_table", options.test_table, options)
        return within_limits(data, images, labelled, tests)

    def load(self) -> Dataset:
        """Reads the tables, and decodes the images.

        Raises:
            ConfigError: root or table are not given, cannot be read, lack a column or list a file
                twice; or no image can be read.
        """
        options = self.settings
        if not options.root or not options.table:
            raise ConfigError(
                f"data.root must name a folder or a zip of images, data.table the CSV that lists "
                f"them, for data={self.data.name}"
            )
        with Archive(at_home(options.root)) as archive:
            files = archive.files()
            train = _listed(files, "data.table", options.table, options, options.group)
            test = None
            if options.test_table:
                test = _listed(files, "data.test_table", options.test_table, options, None)
                _warn_of_shared(train, test, options.test_table)
            key = f"data.label={options.label}"
            classes = Classes(key, _values(train.labels, SEVERAL in "".join(train.labels)))
            contents = Contents(
                self._rows(archive, train, classes),
                None if test is None else self._rows(archive, test, classes),
                classes.names,
            )
            given = ["image_table", options.label, options.group]
            if options.group is None:  # caches of earlier versions lack the paths of their images
                given.append("paths")
            return load_rows(contents, self.data, options, given, self.listed)

    @staticmethod
    def _rows(archive: Archive, lines: _Lines, classes: Classes) -> Rows:
        labels = _values(lines.labels, classes.several or SEVERAL in "".join(lines.labels))
        return Rows(
            names=[file.name for file in lines.files],
            read=archive.read,
            targets=classes.targets(labels) if labels else None,
            groups=lines.groups,
            identity=lambda names: [archive.identity(lines.files), lines.labels, lines.groups],
            are_paths=True,
        )


def _counted(key: str, path: str, options: ImageTable.Settings) -> tuple[int, int]:
    """How many lines a table has, and how many of them have a label."""
    columns = [name.lower() for name in (options.file, options.label) if name]
    lines = [cells for _, (_, *cells) in read_table(key, path, columns)]
    return len(lines), sum(map(any, lines))


def _listed(
    files: list[ImageFile], key: str, path: str, options: ImageTable.Settings, group: str | None
) -> _Lines:
    """The lines of a table whose images exist; a warning counts the others."""
    named = {file.name: file for file in files}
    stems = Counter(PurePosixPath(name).stem for name in named)
    for file in files:  # a table may name them without folder and suffix
        stem = PurePosixPath(file.name).stem
        if stems[stem] == 1:
            named.setdefault(stem, file)
    chosen = {"data.file": options.file, "data.label": options.label, "data.group": group}
    columns = [name.lower() for name in chosen.values() if name]
    keys = {name.lower(): f"{key}={name}" for key, name in chosen.items() if name}
    listed: dict[str, tuple[ImageFile, list[str]]] = {}
    missing: list[str] = []
    several: list[str] = []  # names that fit more than one file
    lines = read_table(key, path, columns, keys)
    names = named_files({name for _, (name, *_) in lines}, named)
    for line, (name, *cells) in lines:
        if not name:
            raise ConfigError(f"{key}={path}: line {line} has no {options.file}")
        if names[name] not in named:
            (several if stems[name] > 1 else missing).append(name)
            continue
        image = named[names[name]]
        if image.name in listed:
            raise ConfigError(f"{key}={path}: line {line}: {printable(name)} is listed twice")
        listed[image.name] = image, cells
    if not listed:
        why = _why_none(missing, several, files)
        raise ConfigError(
            f"{key}={path}: lists no image below data.root={options.root}{why}; files must be "
            "named by their paths below it"
        )
    wrong = {"are not below data.root": missing, "fit several files below data.root": several}
    for why, names_of in wrong.items():
        if names_of:
            count = len(missing) + len(several) + len(listed)
            text = "%s=%s: %d of %d images %s and are left out, such as %s"
            logger.warning(text, key, path, len(names_of), count, why, printable(names_of[0]))
    cells_of = [cells for _, cells in listed.values()]
    labels = [cells[0] for cells in cells_of] if options.label else []
    groups = [cells[-1] for cells in cells_of] if group else None
    if groups and (without := groups.count("")):
        text = "%s=%s: %d of %d images have no %s; together they count as one group, named %s"
        logger.warning(text, key, path, without, len(groups), group, folder_name(""))
    return _Lines([file for file, _ in listed.values()], labels, groups)


def _warn_of_shared(train: _Lines, test: _Lines, test_table: str) -> None:
    """An image that was trained on is found again: its score says nothing of new images."""
    if shared := len({*train.files}.intersection(test.files)):
        text = (
            "data.test_table=%s: %d of %d images are training images as well; scores look too high"
        )
        logger.warning(text, test_table, shared, len(test.files))


def _why_none(missing: list[str], several: list[str], files: list[ImageFile]) -> str:
    """What one of these names means, where none can be used."""
    if missing or not several:
        return "".join(f", such as {printable(name)}" for name in missing[:1])
    fitting = [file.name for file in files if PurePosixPath(file.name).stem == several[0]]
    first, second, *more = map(printable, fitting)
    others = f" and {len(more):,} more" if more else ""
    return f" by a name that fits one file: {printable(several[0])} is {first}, {second}{others}"


def _values(cells: list[str], several: bool) -> list[str | None] | list[list[str]]:
    """The labels of images, None where there is none; lists if images may have several."""
    if not several:
        return [cell or None for cell in cells]
    return [[word for part in cell.split(SEVERAL) if (word := part.strip())] for cell in cells]
