"""Plug-ins are found by their place: a folder of modules with one class each, named by the module.

A :class:`Room` is such a folder of this package. A user's package has folders of the same names:
with `plugins=[my_package]` the class in `my_package/methods/mine.py` is `method=mine`. There is no
registry; a module is imported when its name is chosen.
"""

import difflib
import importlib
import importlib.util
import inspect
import itertools
import pkgutil
import sys
import traceback
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from orchestra_flwr.fingerprints import fingerprint_of

_imported_codes: WeakKeyDictionary[ModuleType, str] = WeakKeyDictionary()  # of users' packages
_own: dict[tuple["Room", str], type[Any]] = {}  # this package's: a run asks hundreds of times


class PluginError(ValueError):
    """A plug-in that does not exist or cannot be imported; its message is one line."""


def must_be_one_of(name: str, names: Sequence[str]) -> str:
    """What an error says after an unknown name: the names that exist, and the most similar one."""
    close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.7)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"must be one of {', '.join(names)}{hint}"


@dataclass(frozen=True)
class Room:
    """A folder of plug-ins."""

    package: str  # its full name, such as "orchestra_flwr.methods"
    base: str  # name of the class in it whose subclasses are the plug-ins, such as "Method"

    @property
    def name(self) -> str:
        """The folder's own name, which a user's package repeats."""
        return self.package.rpartition(".")[2]

    def find(self, name: str, packages: Sequence[str] = ()) -> type[Any]:
        """The class in the module of this name, here or in one of the users' packages.

        Raises:
            PluginError: there is none, there are two, or its module cannot be imported.
        """
        plugin = self.get(name, packages)
        if plugin is None:
            hints = "".join(self._misplaced(name, package) for package in packages)
            raise PluginError(must_be_one_of(name, [*self.found(packages)]) + hints)
        return plugin

    def get(self, name: str, packages: Sequence[str] = ()) -> type[Any] | None:
        """The class in the module of this name, or None; errors as in :meth:`find`."""
        if not packages and (self, name) in _own:
            return _own[self, name]
        homes = [home for home in self._homes(packages) if _has_module(home, name)]
        if len(homes) > 1:
            raise PluginError(
                f"{name} is both in {homes[0].__name__} and in {homes[1].__name__}: rename one"
            )
        if not homes:
            return None
        module = f"{homes[0].__name__}.{name}"
        plugin = self._class_in(module)
        if plugin is None and homes[0].__name__ != self.package:
            raise PluginError(f"{module} holds no public class derived from {self.base}")
        if plugin is not None and inspect.isabstract(plugin):
            missing = ", ".join(sorted(plugin.__abstractmethods__))
            raise PluginError(
                f"class {plugin.__name__} in {inspect.getfile(plugin)} lacks what {self.base} asks "
                f"for: {missing}"
            )
        if plugin is not None and homes[0].__name__ != self.package:
            _check_parameters(plugin)
        if plugin is not None and homes[0].__name__ == self.package:
            _own[self, name] = plugin
        return plugin

    def found(self, packages: Sequence[str] = ()) -> dict[str, type[Any]]:
        """All plug-ins by name, this package's first, without broken files.

        Raises:
            PluginError: one of the packages cannot be imported.
        """
        plugins: dict[str, type[Any]] = {}
        for home in self._homes(packages):
            for info in pkgutil.iter_modules(home.__path__):
                with suppress(PluginError):  # shown where the file is chosen
                    plugin = self._class_in(f"{home.__name__}.{info.name}")
                    if plugin is not None:
                        plugins.setdefault(info.name, plugin)
        return plugins

    def _misplaced(self, name: str, package: str) -> str:
        """What an error says of a package without this plug-in; "" where its folder is right."""
        for folder in map(Path, _import_user_package(package).__path__):
            for file in sorted(folder.rglob("*.py")):
                if file.stem == name:
                    return f"; {package} has {file.relative_to(folder)}, not {self.name}/{name}.py"
        is_there = importlib.util.find_spec(f"{package}.{self.name}")
        return "" if is_there else f"; {package} has no folder {self.name}/"

    def _homes(self, packages: Sequence[str]) -> Iterator[ModuleType]:
        yield importlib.import_module(self.package)
        for package in packages:
            _import_user_package(package)
            if importlib.util.find_spec(f"{package}.{self.name}"):
                yield _imported(f"{package}.{self.name}")

    def _class_in(self, module_name: str) -> type[Any] | None:
        base = getattr(importlib.import_module(self.package), self.base)
        module = _imported(module_name)
        plugins = [
            value
            for name, value in vars(module).items()
            if inspect.isclass(value)
            and issubclass(value, base)
            and value.__module__ == module_name
            and not name.startswith("_")
            and value is not base
        ]
        if len(plugins) > 1:
            names = " and ".join(plugin.__name__ for plugin in plugins[:2])
            raise PluginError(f"{module_name} holds both {names}: one plug-in a file")
        return plugins[0] if plugins else None


def import_packages(packages: Sequence[str]) -> None:
    """Imports users' packages; raises :class:`PluginError` where one cannot be imported."""
    for package in packages:
        _import_user_package(package)


def imported_packages() -> set[str]:
    """The users' packages that this process has imported."""
    return {module.__name__ for module in _imported_codes}


def fingerprint(packages: Sequence[str]) -> str:
    """16 hexadecimal digits that differ whenever the code of one of the packages differs.

    Server and clients compare it before a round. It is computed from the Python files when this
    process imports the package. "" without packages.

    Raises:
        PluginError: a package cannot be imported.
    """
    codes = [_imported_codes[_import_user_package(package)] for package in sorted(packages)]
    return fingerprint_of("\n".join(codes)) if codes else ""


def codes_of(packages: Iterable[str]) -> dict[str, str]:
    """The :func:`fingerprint` of each package, by its name."""
    return {package: fingerprint([package]) for package in packages}


def changed(earlier: Mapping[str, Any], packages: Iterable[str]) -> list[str]:
    """The packages whose code is another one than that of the same names in `earlier`."""
    return [name for name, code in codes_of(packages).items() if earlier.get(name, code) != code]


def has_changed(package: str) -> bool:
    """Whether a Python file of a package differs from what this process imported.

    Raises:
        PluginError: it cannot be imported.
    """
    module = _import_user_package(package)
    return _code_of(module) != _imported_codes[module]


def describe(error: Exception) -> str:
    """An exception in one line: its type, text and place.

    The place is the innermost line of a user's package, or else of this one: most errors are raised
    inside a library, where nobody needs to look.
    """
    places, users = list(traceback.walk_tb(error.__traceback__)), _users_places(error)
    ours = [place for place in places if _is_in({"orchestra_flwr"}, place[0])]
    frame, line = (users or ours or places)[-1]
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text} ({Path(frame.f_code.co_filename).name}:{line})"


def is_of_users_code(error: Exception) -> bool:
    """Whether an exception was raised in or below a line of a user's package."""
    return bool(_users_places(error))


def conf_folders(packages: Sequence[str]) -> list[Path]:
    """The folders `conf/` of users' packages that have one.

    Raises:
        PluginError: a package cannot be imported.
    """
    folders = [Path(f) / "conf" for p in packages for f in _import_user_package(p).__path__]
    return [folder for folder in folders if folder.is_dir()]


def _check_parameters(plugin: type[Any]) -> None:
    """Whether a user's methods can be called like those of this package that they replace."""
    ours = [parent for parent in plugin.__mro__ if parent.__module__.startswith("orchestra_flwr.")]
    for name, method in vars(plugin).items():
        replaced = next((vars(parent)[name] for parent in ours if name in vars(parent)), None)
        theirs, base = (getattr(function, "__func__", function) for function in (method, replaced))
        if name == "__init__" or not (inspect.isfunction(theirs) and inspect.isfunction(base)):
            continue
        expected = inspect.signature(base)
        given = inspect.BoundArguments(expected, OrderedDict(expected.parameters))
        try:
            inspect.signature(theirs).bind(*given.args, **given.kwargs)
        except TypeError as error:
            place = f"{theirs.__code__.co_filename}:{theirs.__code__.co_firstlineno}"
            takes = ", ".join(expected.parameters)
            raise PluginError(
                f"{plugin.__name__}.{name} ({place}) must take ({takes}): {error}"
            ) from error


def _users_places(error: Exception) -> list[tuple[FrameType, int]]:
    packages = imported_packages()
    return [p for p in traceback.walk_tb(error.__traceback__) if _is_in(packages, p[0])]


def _import_user_package(package: str) -> ModuleType:
    for name in itertools.accumulate(package.split("."), "{}.{}".format):
        if not _is_package(name):  # before it is imported
            raise PluginError(f"{name} is a single module: a package with folders is needed")
        module = _imported(name)
    if module not in _imported_codes:
        _imported_codes[module] = _code_of(module)
    return module


def _is_package(name: str) -> bool:
    """Whether a module is a package, or does not exist; the package around it is imported."""
    if name in sys.modules:
        return hasattr(sys.modules[name], "__path__")
    importlib.invalidate_caches()  # the file may be new
    spec = importlib.util.find_spec(name)
    return spec is None or spec.submodule_search_locations is not None


def _code_of(package: ModuleType) -> str:
    files = [
        f"{package.__name__}/{file.relative_to(folder).as_posix()} "
        f"{fingerprint_of(file.read_bytes())}"
        for folder in sorted(package.__path__)
        for file in sorted(Path(folder).rglob("*.py"))
    ]
    return fingerprint_of("\n".join(files))


def _imported(name: str) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    importlib.invalidate_caches()  # the file may be new
    try:
        return importlib.import_module(name)
    except Exception as error:  # a user's module may raise anything
        reason = " ".join(str(error).split())
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            reason += " (neither installed nor in a folder of PYTHONPATH)"
        raise PluginError(f"{name} cannot be imported: {type(error).__name__}: {reason}") from error


def _has_module(home: ModuleType, name: str) -> bool:
    if not name.isidentifier():
        return False
    if f"{home.__name__}.{name}" in sys.modules:  # listing the folder for each client is slow
        return True
    return any(info.name == name for info in pkgutil.iter_modules(home.__path__))


def _is_in(packages: set[str], frame: FrameType) -> bool:
    module = frame.f_globals.get("__name__", "")
    return any(module == package or module.startswith(f"{package}.") for package in packages)
