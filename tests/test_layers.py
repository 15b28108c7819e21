"""The house: who may import whom, how long a function may be, and which rooms are large."""

import ast
import functools
import itertools
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

import orchestra_flwr
from orchestra_flwr.config import Config
from orchestra_flwr.config.choices import SolverConfig, TermConfig

LAYERS = [
    ["optional_formats"],
    ["fingerprints", "console", "square_image", "machine_limits", "process_memory"],
    ["plugins", "seeding", "files", "folder_lock"],
    ["tensor_files"],
    ["config"],
    ["extras"],
    ["commands"],
    ["flower", "models", "privacy"],
    ["data"],
    ["clustering"],
    ["methods"],
    ["terms"],
    ["training"],
    ["merging", "evaluation"],
    ["reporting"],
    ["export"],
    ["use"],
    ["federation"],
    ["deployment"],
    ["experiments"],
    ["cli", "from_python"],
    ["__main__"],  # thin entries, python -m orchestra_flwr.<package>
]
ROOT = Path(orchestra_flwr.__file__).parent
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
LONGEST_FUNCTION = 60  # lines, from def to end
LARGE_ROOM = 13  # files; a room of plug-ins may have more

# File names that occur more than once, in one sense.
SAME_SENSE = {
    "__init__": "what a package offers",
    "__main__": "an entry of python -m",
    "features": "what an encoder makes of images",
    "mean": "the plain mean of the clients' models",
    "none": "nothing of what the room offers",
    "adam": "the optimizer of that name, of clients and of the server",
}


CHOICES = [
    *(f.annotation for f in Config.model_fields.values() if hasattr(f.annotation, "room")),
    TermConfig,
    SolverConfig,
]
ROOMS = {choice.room.package: choice.room for choice in CHOICES}


def modules() -> list[Path]:
    return [p for p in ROOT.rglob("*.py") if p.parent != ROOT or p.name != "__init__.py"]


def name_of(path: Path) -> str:
    """A file's module, by its full name."""
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(path) for path in ROOT.rglob("*.py")}


def named(node: ast.AST) -> set[str]:
    """The modules that an import statement names."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        names = {f"{node.module}.{alias.name}" for alias in node.names}
        return names if names <= NAMES else {node.module, *(names & NAMES)}
    return set()


@functools.cache
def imports(path: Path) -> frozenset[str]:
    """The modules that a module imports, wherever in it."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return frozenset[str]().union(*map(named, nodes))


def needed(path: Path) -> set[str]:
    """The modules of this package that a module imports; not what only a type checker sees."""
    imported: set[str] = set()
    waiting: list[ast.AST] = [*ast.parse(path.read_text()).body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        else:
            imported |= named(node)
            waiting += ast.iter_child_nodes(node)
    return imported & NAMES


def package(path: Path) -> str:
    if path.name == "__main__.py":
        return "__main__"
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_imports_point_down():
    wrong = []
    for path in modules():
        section = package(path)
        for name in imports(path):
            parts = name.split(".")
            inside = parts[0] == "orchestra_flwr" and len(parts) > 1 and parts[1] != section
            if inside and LEVEL[parts[1]] >= LEVEL[section]:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong


def test_no_module_waits_for_itself():
    """No circle of imports, not even one that works because a function makes one of them."""
    graph = {name_of(path): needed(path) for path in modules()}
    done: set[str] = set()

    def visit(name: str, above: list[str]) -> None:
        assert name not in above, " imports ".join([*above[above.index(name) :], name])
        if name not in done:
            for other in sorted(graph.get(name, ())):
                visit(other, [*above, name])
            done.add(name)

    for name in sorted(graph):
        visit(name, [])


@pytest.mark.parametrize(
    ("library", "home"),
    [
        ("flwr", {"flower", "federation", "deployment"}),
        ("hydra", {"config"}),
        ("dp_accounting", {"privacy"}),
    ],
)
def test_a_library_stays_at_home(library, home):
    users = {package(p) for p in modules() if library in {n.split(".")[0] for n in imports(p)}}
    assert users == home


PUBLIC_OF_FLOWER = {"app", "client", "clientapp", "serverapp", "simulation"}


def test_the_insides_of_flower_and_ray_are_touched_in_one_room():
    wrong = []
    for path in modules():
        for name in imports(path) if package(path) != "flower" else ():
            library, _, rest = name.partition(".")
            inside = library == "flwr" and rest.split(".")[0] not in PUBLIC_OF_FLOWER
            if inside or library == "ray":
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong


@pytest.mark.parametrize("package", ROOMS)
def test_a_room_does_not_import_its_plugins(package):
    """A plug-in is imported when it is chosen."""
    folder = ROOT.parent.joinpath(*package.split("."))
    plugins = {f"{package}.{name}" for name in ROOMS[package].found()}
    for path in (folder / "__init__.py", folder / "base.py"):
        assert not path.exists() or not imports(path) & plugins, path


def test_functions_are_short():
    long = {}
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                if lines > LONGEST_FUNCTION:
                    long[f"{path.relative_to(ROOT)}: {node.name}"] = lines
    assert not long


def warn_of_large_rooms(paths: Iterable[Path]) -> None:
    files = Counter(p.parent for p in paths if p.stem not in ("__init__", "__main__"))
    for room, count in files.items():
        if count > LARGE_ROOM and name_of(room / "__init__.py") not in ROOMS:
            warnings.warn(f"{room}: {count} files may hold two concepts", stacklevel=2)


def test_a_large_room_is_warned_of():
    """The number warns; it does not design."""
    large = [ROOT / "crowded" / f"{number}.py" for number in range(LARGE_ROOM + 1)]
    with pytest.warns(UserWarning, match="crowded: 14 files"):
        warn_of_large_rooms(large)
    with warnings.catch_warnings(action="error"):
        warn_of_large_rooms(large[1:])
        warn_of_large_rooms([ROOT / "methods" / path.name for path in large])
    warn_of_large_rooms(modules())


def test_a_name_has_one_sense():
    """Of files and of folders."""
    places = defaultdict(list)
    for path in [*modules(), *{path.parent for path in modules()}]:
        places[path.stem].append(str(path.relative_to(ROOT)))
    assert {n: p for n, p in places.items() if len(p) > 1 and n not in SAME_SENSE} == {}


def documented(heading: str) -> list[list[str]]:
    """The cells of the first table after some text in docs/architecture.md, row by row."""
    lines = (ROOT.parent / "docs" / "architecture.md").read_text().splitlines()
    after = itertools.dropwhile(lambda line: not line.startswith(heading), lines)
    rows = itertools.dropwhile(lambda line: not line.startswith("|"), after)
    table = itertools.takewhile(lambda line: line.startswith("|"), rows)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table][2:]


def test_the_documented_layers_are_those_that_are_checked():
    shown = {
        room: int(layer)
        for layer, rooms, _ in documented("## Layers")
        for room in re.findall(r"`(\w+)/?`", rooms)
    }
    above = {"cli", "from_python", "__main__", "optional_formats"}
    assert {*shown} == {*LEVEL} - above
    for one, other in itertools.product(shown, repeat=2):
        assert shown[one] <= shown[other] or LEVEL[one] > LEVEL[other], (one, other)


def test_the_documented_sizes_are_those_of_the_rooms():
    counted = Counter()
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).parts[0] if path.parent != ROOT else "files"
        counted[room] += len(path.read_text().splitlines())
    cells = [cell for row in documented("**Size.**") for cell in row]
    shown = {
        frozenset(re.findall(r"`(\w+)/`", name) or ["files"]): int(lines.replace(",", ""))
        for name, lines in zip(cells[::2], cells[1::2], strict=True)
    }
    assert {room for rooms in shown for room in rooms} == {*counted}
    for rooms, lines in shown.items():
        assert lines == pytest.approx(sum(counted[room] for room in rooms), rel=0.05), rooms
