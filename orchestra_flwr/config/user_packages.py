"""Users' packages of plug-ins: which ones a section names, and which ones may be imported."""

from collections.abc import Collection
from typing import Any, Self

from pydantic import field_validator, model_validator

from orchestra_flwr.config.choice import Choice
from orchestra_flwr.config.section import ConfigError, Section
from orchestra_flwr.plugins import imported_packages


def are_packages(values: Any) -> bool:
    """Whether these are names of Python packages, none of them this one."""
    return isinstance(values, list | tuple) and all(
        isinstance(value, str)
        and all(part.isidentifier() for part in value.split("."))
        and value.partition(".")[0] != "orchestra_flwr"
        for value in values
    )


def packages_in(plugins: Any) -> tuple[str, ...]:
    """The packages that a value of `plugins` names, one or a list; empty if it names none."""
    packages = [plugins] if isinstance(plugins, str) else plugins
    return tuple(packages) if are_packages(packages) else ()


def check_named(source: object, packages: Any, named: Collection[str] = ()) -> None:
    """Refuses packages that a file names but the caller does not: importing them runs their code.

    Those that this process has imported count as named.

    Raises:
        ConfigError: says how to name them, or that these are no names of packages.
    """
    if not are_packages(packages):
        raise ConfigError(f"{source}: is damaged, plugins must be names of packages")
    missing = [p for p in packages if p not in {*named, *imported_packages()}]
    if missing:
        raise ConfigError(
            f"{source} asks for plugins=[{','.join(missing)}], and only packages that you name are "
            f"imported: add plugins=[{','.join(missing)}], in Python plugins={missing}"
        )


class WithPlugins(Section):
    """A section that holds choices, and the users' packages in which to look for them."""

    plugins: tuple[str, ...] = ()

    @field_validator("plugins", mode="before")
    @classmethod
    def _plugins_are_packages(cls, value: Any) -> Any:
        packages = [value] if isinstance(value, str) else value or ()
        if not are_packages(packages):
            written = ",".join(map(str, packages)) if isinstance(packages, list) else packages
            raise ValueError(f"plugins=[{written}]: must be names of Python packages of your own")
        return tuple(packages)

    @model_validator(mode="after")
    def _choices_know_the_packages(self) -> Self:
        for choice in self.choices():
            choice.look_in(self.plugins)
        return self

    def choices(self) -> list[Choice]:
        """All choices in this section."""
        values = [getattr(self, name) for name in type(self).model_fields]
        return [value for value in values if isinstance(value, Choice)]
