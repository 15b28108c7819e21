"""The parts of the configuration, and their errors in one line."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

PATH = "path"
PathText = Annotated[str, PATH]  # taken literally on a command line, as are names of files
OptionalPathText = Annotated[str | None, PATH]


def required(key: str, what: str) -> BeforeValidator:
    """A validator of a text that must be given; otherwise the error says what it is."""

    def given(value: Any) -> str:
        if not value:
            raise ValueError(f"{key}: must be given, {what}")
        return str(value)

    return BeforeValidator(given)


class ConfigError(ValueError):
    """A configuration that cannot run; its message is one line: the key and what is allowed."""


class Section(BaseModel):
    """A frozen part of the configuration that refuses unknown keys."""

    # Options of plug-ins in this section whose values are paths.
    paths: ClassVar[tuple[str, ...]] = ()

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Python's `True` is the number 1: as a number of clients it would mean one client."""
        if isinstance(value, bool) and info.field_name:
            annotation = cls.model_fields[info.field_name].annotation
            allowed = {annotation, *get_args(annotation)}
            if allowed & {int, float} and bool not in allowed:
                raise PydanticCustomError("number_expected", "must be a number")
        return value


class Composed(Section):
    """A whole configuration, composed by Hydra from a file of `conf/`."""

    file: ClassVar[str]  # its name, without .yaml
    # Keys in files that only other values refer to; they are left out of the result.
    referred: ClassVar[tuple[str, ...]] = ("preset_options",)
    # Keys that are null unless the command line sets them, whatever files of choices say.
    undecided: ClassVar[tuple[str, ...]] = ()
    # Keys and sections that only another command reads; no hint leads to them.
    foreign: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def is_foreign(cls, key: str) -> bool:
        """Whether no hint should lead to a key, by its full name."""
        return ".paper." in f"{key}." or within(key, cls.foreign)

    def unread(self) -> dict[str, str]:
        """Keys that have no effect with the values of other keys, and why: "with optimizer=adam".

        A command that sets one of them is refused, sweeps leave it out, and reports do not compare
        it. The name of a section stands for all its keys.
        """
        return {}

    @classmethod
    def suggested(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values that the chosen plug-ins suggest for keys, by their full names.

        A new run has them unless the key is set. A resumed run keeps its own values. `values` are
        composed and unchecked; errors in them are reported when they are checked.
        """
        return {}


S = TypeVar("S", bound=Section)


def parse(section: type[S], values: Any, path: str = "") -> S:
    """Checks plain values against a section; `path` is the section's full key.

    Raises:
        ConfigError: names the first wrong key by its full path, its value and what is allowed.
    """
    try:
        return section.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_describe(error, section, path)) from None


ALIKE = 0.6  # least similarity of the last parts of two keys for one to be suggested


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def suggestion(key: str, allowed: Sequence[str]) -> str:
    """A hint at allowed keys that are spelled like an unknown one, or that end in it."""
    ends = [name for name in allowed if key in (end := _last(name), *end.split("_"))]
    close = [
        name
        for name in difflib.get_close_matches(key, allowed, n=2, cutoff=0.75)
        if difflib.SequenceMatcher(None, _last(key), _last(name)).ratio() > ALIKE
    ] or ends[:2]
    return f" (did you mean {' or '.join(close)}?)" if close else " (see --help)"


def within(key: str, keys: Iterable[str]) -> bool:
    """Whether a key is one of `keys`, or in a section that is."""
    return f"{key}.".startswith(tuple(f"{other}." for other in keys))


def why_unread(key: str, unread: Mapping[str, str]) -> str | None:
    """Why a key has no effect, by :meth:`Composed.unread`; None if it has one."""
    return next((why for name, why in unread.items() if within(key, [name])), None)


def section_keys(section: type[Section], prefix: str = "") -> Iterator[str]:
    """The full names of all keys of a section and of the sections in it."""
    for name, field in section.model_fields.items():
        yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from section_keys(field.annotation, f"{prefix}{name}.")


def path_keys(section: type[Section], prefix: str = "") -> Iterator[str]:
    """The full names of all keys whose values are paths, plug-ins' options (`paths`) included."""
    for name, field in section.model_fields.items():
        if PATH in field.metadata:
            yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from path_keys(field.annotation, f"{prefix}{name}.")
    yield from (prefix + option for option in section.paths)


def _describe(error: ValidationError, section: type[Section], path: str) -> str:
    first = error.errors()[0]
    key = ".".join([*([path] if path else []), *map(str, first["loc"])])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] in ("tuple_type", "list_type"):
        message = f"must be a list, which is written {key}=[{_written(first['input'])}]"
    if first["type"] == "extra_forbidden":
        prefix = f"{path}." if path else ""
        keys = list(section_keys(section, prefix))
        if issubclass(section, Composed):
            keys = [key for key in keys if not section.is_foreign(key)]
        return f"{key}: unknown key{suggestion(key, keys)}"
    if first["type"] == "missing":
        return f"{key}: must be given"
    if first["type"] in ("model_type", "dict_type"):
        return f"{key}={_written(first['input'])}: must be given by its keys (see --help)"
    if first["type"] == "value_error":
        return message
    if first["type"] == "string_type" and isinstance(first["input"], int | float):
        of_list, _, last = key.rpartition(".")
        value = _written(first["input"])
        quoted = f"{of_list}=['{value}',...]" if last.isdigit() else f"{key}='{value}'"
        return f'{key}={value}: must be a text; what looks like a number is quoted: "{quoted}"'
    return f"{key}={_written(first['input'])}: {message[:1].lower()}{message[1:]}"


def _written(value: Any) -> Any:
    """A value as it is written in a configuration."""
    is_word = value is None or isinstance(value, bool)
    return {None: "null", True: "true", False: "false"}[value] if is_word else value
