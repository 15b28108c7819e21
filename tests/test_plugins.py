"""How plug-ins are found, with the room of shifts as the example."""

import pkgutil
import sys

import pytest

from orchestra_flwr.config import ConfigError, load_config
from orchestra_flwr.plugins import PluginError, Room, conf_folders, fingerprint, has_changed

SHIFTS = Room("orchestra_flwr.data.shifts", "Shift")
OURS = ["none", "rotation", "style"]
PLUGIN = """
    from orchestra_flwr.data import Shift

    class {name}(Shift):
        def apply(self, images, indices, client, seed):
            return images
"""


def plugin(name: str) -> str:
    return PLUGIN.format(name=name)


def refused(name: str, *packages: str) -> str:
    with pytest.raises(PluginError) as error:
        SHIFTS.find(name, packages)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_plugin_is_found_by_its_file(user_package):
    user_package({"shifts/mine.py": plugin("Mine")})
    assert SHIFTS.find("mine", ("my_package",)).__name__ == "Mine"
    assert SHIFTS.find("none", ("my_package",)).__name__ == "NoShift"


def test_our_own_is_looked_for_once_and_a_package_may_still_not_repeat_it(
    user_package, monkeypatch
):
    assert SHIFTS.find("rotation") is SHIFTS.find("rotation")
    with monkeypatch.context() as patch:
        patch.setattr(Room, "_class_in", None)
        assert SHIFTS.find("rotation").__name__ == "Rotation"
    user_package({"shifts/rotation.py": plugin("Mine")})
    assert "rotation is both in" in refused("rotation", "my_package")


def test_a_package_may_lie_in_another(user_package):
    user_package({"inner/__init__.py": "", "inner/shifts/mine.py": plugin("Mine")})
    assert SHIFTS.find("mine", ("my_package.inner",)).__module__ == "my_package.inner.shifts.mine"


def test_a_package_needs_no_room_of_each_kind(user_package):
    user_package({"methods/mine.py": ""})
    assert list(SHIFTS.found(("my_package",))) == OURS


def test_a_package_without_the_folder_of_a_kind_is_named_beside_an_unknown_name(user_package):
    user_package({"methods/other.py": ""})
    assert refused("mine", "my_package").endswith("; my_package has no folder shifts/")


@pytest.mark.parametrize("file", ["shift/mine.py", "methods/mine.py", "mine.py"])
@pytest.mark.parametrize("other", ["shifts/other.py", "terms/other.py"])
def test_a_file_in_the_wrong_folder_is_named(user_package, file, other):
    """As in `shift/`, as the group of the configuration is called. Where the package had the right
    folder as well, there was only a list of names.
    """
    user_package({file: plugin("Mine"), other: plugin("Other")})
    assert refused("mine", "my_package").endswith(f"; my_package has {file}, not shifts/mine.py")


def test_plugins_are_listed_in_the_order_of_the_packages(user_package):
    user_package({"shifts/beta.py": plugin("B"), "shifts/alpha.py": plugin("A")})
    user_package({"shifts/aaa.py": plugin("First")}, package="another")
    packages = ("my_package", "another")
    assert list(SHIFTS.found(packages)) == [*OURS, "alpha", "beta", "aaa"]
    assert list(SHIFTS.found(packages[::-1])) == [*OURS, "aaa", "alpha", "beta"]
    assert refused("gamma", *packages) == f"must be one of {', '.join(OURS)}, alpha, beta, aaa"


@pytest.mark.parametrize("name", ["", "__init__", "os.path", "../none", "None"])
def test_what_is_no_name_of_a_file_is_not_found(name):
    assert refused(name).partition(" (did")[0] == f"must be one of {', '.join(OURS)}"


def test_a_module_is_imported_only_when_it_is_chosen(user_package):
    user_package({"shifts/mine.py": plugin("Mine"), "shifts/broken.py": "raise RuntimeError"})
    assert SHIFTS.find("mine", ("my_package",)).__name__ == "Mine"


def test_a_broken_module_stands_in_the_way_of_no_other(user_package):
    user_package({"shifts/mine.py": plugin("Mine"), "shifts/broken.py": "raise RuntimeError"})
    assert list(SHIFTS.found(("my_package",))) == [*OURS, "mine"]
    assert refused("gamma", "my_package") == f"must be one of {', '.join(OURS)}, mine"
    assert load_config(["plugins=[my_package]", "shift=mine"]).shift.name == "mine"
    with pytest.raises(ConfigError, match=r"^shift=broken: my_package\.shifts\.broken cannot be"):
        load_config(["plugins=[my_package]", "shift=broken"])


def test_a_folder_is_listed_only_until_the_module_is_imported(monkeypatch):
    first = SHIFTS.find("none")
    monkeypatch.setattr(pkgutil, "iter_modules", None)
    assert SHIFTS.find("none") is first


def test_helpers_are_no_plugins(user_package):
    """Private classes, classes from elsewhere, and modules without a plug-in."""
    mine = (
        "from my_package.shifts.other import Other\n"
        "from orchestra_flwr.data import Shift\n\n"
        "class _Base(Shift):\n    def apply(self, *_):\n        pass\n\n"
        "class Mine(_Base):\n    pass\n\n"
        "class Angle:\n    pass\n"
    )
    files = {"shifts/mine.py": mine, "shifts/other.py": plugin("Other")}
    user_package({**files, "shifts/angles.py": "FULL = 360"})
    assert SHIFTS.find("mine", ("my_package",)).__name__ == "Mine"
    assert list(SHIFTS.found(("my_package",))) == [*OURS, "mine", "other"]
    assert refused("angles", "my_package") == (
        "my_package.shifts.angles holds no public class derived from Shift"
    )


def test_two_classes_in_a_file_are_refused(user_package):
    two = plugin("Mine") + plugin("Other").replace("from orchestra_flwr.data import Shift", "")
    user_package({"shifts/mine.py": two})
    assert refused("mine", "my_package") == (
        "my_package.shifts.mine holds both Mine and Other: one plug-in a file"
    )


@pytest.mark.parametrize("taken", ["images, indices, client, seed", "images, *rest", "*all"])
def test_a_method_may_name_its_parameters_as_it_likes(user_package, taken):
    mine = plugin("Mine").replace("images, indices, client, seed", taken).replace("images\n", "0\n")
    user_package({"shifts/mine.py": mine})
    assert SHIFTS.find("mine", ("my_package",)).__name__ == "Mine"


@pytest.mark.parametrize(
    ("taken", "why"),
    [
        ("images, indices, client", "too many positional arguments"),
        ("images, indices, client, seed, scale", "missing a required argument: 'scale'"),
        ("images, indices, client, *, seed", "too many positional arguments"),
    ],
)
def test_a_method_that_cannot_be_called_like_its_base_is_named_with_its_line(
    user_package, taken, why
):
    mine = plugin("Mine").replace("images, indices, client, seed", taken)
    folder = user_package({"shifts/mine.py": mine})
    assert refused("mine", "my_package") == (
        f"Mine.apply ({folder}/shifts/mine.py:5) must take (self, images, indices, client, seed): "
        f"{why}"
    )


def test_a_class_without_a_method_that_its_base_asks_for_is_named_with_its_file(user_package):
    folder = user_package({"shifts/mine.py": plugin("Mine").replace("def apply", "def aply")})
    assert refused("mine", "my_package") == (
        f"class Mine in {folder}/shifts/mine.py lacks what Shift asks for: apply"
    )
    with pytest.raises(ConfigError, match=r"^shift=mine: class Mine in .*mine\.py lacks"):
        load_config(["plugins=[my_package]", "shift=mine"])


@pytest.mark.parametrize(
    ("name", "meant"), [("rotaton", "rotation"), ("Style", "style"), ("minee", "mine")]
)
def test_a_name_that_is_alike_is_suggested(user_package, name, meant):
    user_package({"shifts/mine.py": plugin("Mine")})
    assert refused(name, "my_package").endswith(f", mine (did you mean {meant}?)")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
        ("def f(:", "SyntaxError: invalid syntax (mine.py, line 1)"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line(user_package, text, reason):
    user_package({"shifts/mine.py": text})
    line = refused("mine", "my_package")
    assert line == f"my_package.shifts.mine cannot be imported: {reason}"


def test_a_name_in_two_places_is_refused(user_package):
    user_package({"shifts/none.py": plugin("Mine"), "shifts/mine.py": plugin("Mine")})
    user_package({"shifts/mine.py": plugin("Mine")}, package="another")
    assert refused("none", "my_package") == (
        "none is both in orchestra_flwr.data.shifts and in my_package.shifts: rename one"
    )
    assert refused("mine", "my_package", "another") == (
        "mine is both in my_package.shifts and in another.shifts: rename one"
    )


def test_a_package_that_is_not_there_is_one_line():
    line = (
        "my_package cannot be imported: ModuleNotFoundError: No module named 'my_package' "
        "(neither installed nor in a folder of PYTHONPATH)"
    )
    assert refused("none", "my_package") == line
    for use in (fingerprint, conf_folders):
        with pytest.raises(PluginError) as error:
            use(("my_package",))
        assert str(error.value) == line


@pytest.mark.parametrize("package", ["antigravity", "alone", "alone.part"])
def test_a_single_module_is_refused_before_it_is_imported(tmp_path, monkeypatch, package):
    (tmp_path / "alone.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError, match="is a single module: a package with folders is needed"):
        conf_folders((package,))
    assert not {"antigravity", "alone"} & sys.modules.keys()


def test_a_single_module_is_no_package(user_package):
    user_package({"mine.py": ""})
    line = "my_package.mine is a single module: a package with folders is needed"
    assert refused("none", "my_package.mine") == line
    with pytest.raises(PluginError, match=line):
        fingerprint(("my_package.mine",))


@pytest.fixture
def imported_anew():
    """The fingerprint in a process that imports the package now."""

    def fingerprinted():
        for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
            del sys.modules[name]
        return fingerprint(("my_package",))

    return fingerprinted


def test_a_fingerprint_is_that_of_the_python_files(user_package, imported_anew):
    assert fingerprint(()) == ""
    folder = user_package({"shifts/mine.py": plugin("Mine")})
    first = imported_anew()
    assert len(first) == 16 and int(first, 16) >= 0

    (folder / "notes.txt").write_text("no code")
    assert imported_anew() == first
    user_package({"shifts/mine.py": plugin("Mine") + "\n"})
    changed = imported_anew()
    user_package({"shifts/helper.py": ""})
    more = imported_anew()
    (folder / "shifts" / "helper.py").rename(folder / "shifts" / "helpers.py")
    renamed = imported_anew()
    assert len({first, changed, more, renamed}) == 4

    (folder / "shifts" / "helpers.py").unlink()
    user_package({"shifts/mine.py": plugin("Mine")})
    assert imported_anew() == first


def test_a_fingerprint_is_that_of_the_code_that_runs(user_package, imported_anew):
    user_package({"shifts/mine.py": plugin("Mine")})
    first = imported_anew()
    assert not has_changed("my_package")
    user_package({"shifts/another.py": plugin("Another")})
    assert has_changed("my_package") and fingerprint(("my_package",)) == first
    assert imported_anew() != first and not has_changed("my_package")


def test_conf_folders_are_those_that_exist(user_package):
    user_package({"x.py": ""})
    folder = user_package({"x.py": ""}, package="another")
    (folder / "conf").mkdir()
    assert conf_folders(("my_package", "another")) == [folder / "conf"]


def test_options_that_nothing_checks_are_refused(user_package):
    text = plugin("Mine") + "\n        class Settings:\n            size: int = 1\n"
    user_package({"shifts/mine.py": text})
    assert refused("mine", "my_package") == (
        "my_package.shifts.mine cannot be imported: TypeError: Mine.Settings must be derived from "
        "Section"
    )
