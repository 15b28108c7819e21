"""A choice by name: which plug-in of a room, and the options that this plug-in itself checks."""

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from pydantic import ConfigDict, PrivateAttr, model_validator

from orchestra_flwr.config.section import ConfigError, Section, parse
from orchestra_flwr.plugins import PluginError, Room, describe


class Choice(Section):
    """The name of a plug-in, the options common to its room, and the plug-in's own options.

    The fields of a subclass are the common options. Every other key must be a field of the
    plug-in's `Settings` (a :class:`Section`).
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    room: ClassVar[Room]  # the folder of the plug-ins
    key: ClassVar[str]  # the key of the choice in the configuration
    # Fields that error messages do not offer as options.
    unlisted: ClassVar[tuple[str, ...]] = ("name",)
    # For options that several plug-ins have, the plug-in most likely meant.
    likely_plugin: ClassVar[dict[str, str]] = {}

    name: str
    _packages: tuple[str, ...] = PrivateAttr(default=())

    @model_validator(mode="before")
    @classmethod
    def _a_name_alone_is_enough(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if not isinstance(value, dict | Choice):
            raise ValueError(f"{cls.key}={value}: must be a name or a section with a name")
        return value

    @property
    def options(self) -> dict[str, Any]:
        """The plug-in's own options, unchecked."""
        return dict(self.model_extra or {})

    @property
    def path(self) -> str:
        """The key of the section with the options."""
        return self.key

    def written(self, name: str) -> str:
        """The choice of a plug-in, as written on a command line."""
        return f"{self.key}={name}"

    def look_in(self, packages: tuple[str, ...]) -> None:
        """Sets the users' packages in which plug-ins are looked for (`plugins=`)."""
        self._packages = packages

    @property
    def plugin(self) -> type[Any]:
        """The chosen class.

        Raises:
            ConfigError: there is none with this name; the message lists those that exist.
        """
        try:
            return self.room.find(self.name, self._packages)
        except PluginError as error:
            raise ConfigError(f"{self.written(self.name)}: {error}") from None

    @property
    def is_users(self) -> bool:
        """Whether the chosen class is of a user's package."""
        return not self.plugin.__module__.startswith("orchestra_flwr.")

    @property
    def settings(self) -> Any:
        """The options as the plug-in's checked, frozen `Settings`.

        Raises:
            ConfigError: names the first wrong option, its value and what is allowed.
        """
        settings: type[Section] = self.plugin.Settings
        for option in self.options:
            if option not in settings.model_fields:
                raise ConfigError(self._unknown_option(option, settings))
        return parse(settings, self.options, self.path)

    def build(self, *arguments: Any, **named: Any) -> Any:
        """A new object of the chosen class, from its settings and these arguments."""
        return self.plugin(self.settings, *arguments, **named)

    @contextmanager
    def tried(self) -> Iterator[None]:
        """Turns what the plug-in raises on a trial into a :class:`ConfigError` that names it."""
        try:
            yield
        except ConfigError:
            raise
        except Exception as error:  # a user's code may raise anything
            raise ConfigError(f"{self.written(self.name)}: {describe(error)}") from error

    def check_returned(self, method: str, returned: Any, fits: bool, wanted: str) -> None:
        """Refuses what a method of the plug-in returned, unless it fits what its base class says.

        Raises:
            ConfigError: one line with the choice, the class, the method and what was returned.
        """
        if not fits:
            raise ConfigError(
                f"{self.written(self.name)}: {self.plugin.__name__}.{method} must return {wanted}, "
                f"and returned {shown(returned)}"
            )

    def _unknown_option(self, option: str, settings: type[Section]) -> str:
        allowed = [name for name in type(self).model_fields if name not in self.unlisted]
        allowed += settings.model_fields
        ends = [name for name in allowed if option in name.split("_")]
        close = difflib.get_close_matches(option, allowed, n=1, cutoff=0.7) or ends
        others = [
            self.written(name)
            for name, plugin in self.room.found(self._packages).items()
            if option in plugin.Settings.model_fields
        ]
        hint = f"did you mean {self.path}.{close[0]}?" if close else ""
        if not close and others:
            hint = f"{', '.join(others)} {'has' if len(others) == 1 else 'have'} it"
            if option in self.likely_plugin:
                hint += f"; did you mean {self.written(self.likely_plugin[option])}?"
        options = ", ".join(allowed) or "no options"
        return (
            f"{self.path}.{option}: unknown option of {self.written(self.name)}, "
            f"which has {options}" + (f" ({hint})" if hint else "")
        )


def shown(value: Any) -> str:
    """A value in a few words; of an array or tensor its type and shape."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"a {type(value).__name__}, {dtype} {tuple(value.shape)}"
    return " ".join(repr(value).split())[:80]


class Plugin:
    """Base class of all plug-ins.

    Args:
        settings: the plug-in's own options, an object of its `Settings`.

    Class attributes:
        Settings: its own options; a :class:`Section` with a default for each.
        uses: keys of choices, such as "clustering", that only plug-ins naming them here read.
    """

    Settings: ClassVar[type[Section]] = Section
    uses: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuses options that nothing checks."""
        super().__init_subclass__(**options)
        if not issubclass(cls.Settings, Section):
            raise TypeError(f"{cls.__name__}.Settings must be derived from {Section.__name__}")

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    @classmethod
    def check(cls, config: Any) -> None:
        """Refuses a run (a :class:`Config`) that this plug-in cannot be part of.

        Called for every plug-in that a configuration names, before anything is built.

        Raises:
            ValueError: one line that names the key, its value and what is allowed.
        """

    @classmethod
    def unread(cls, config: Any) -> dict[str, str]:
        """Keys that have no effect in a run (a :class:`Config`) with this plug-in, and why.

        See :meth:`Composed.unread`. The message is "<key>: is not read <why>".
        """
        return {}
