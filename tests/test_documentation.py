"""The guides tell the truth about names, keys, commands and links."""

import importlib.util
import io
import re
import shlex
from pathlib import Path

import pytest

from orchestra_flwr.commands.experiment_line import EXPERIMENT_KEYS
from orchestra_flwr.config import Config, EvaluateConfig, load, load_config
from orchestra_flwr.config.choice import Choice
from orchestra_flwr.config.choices import TermConfig
from orchestra_flwr.deployment.client_config import ClientConfig
from orchestra_flwr.deployment.keys.command_line import main as keys_main
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.deployment.watch.top import TopConfig
from orchestra_flwr.experiments.planning.description import (
    experiment_names,
    load_experiment,
    load_scale,
)
from orchestra_flwr.export.export_config import ExportConfig
from orchestra_flwr.use.use_config import CompareConfig, EmbedConfig, LabelConfig
from tests.test_layers import ROOMS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SECURITY = (ROOT / "SECURITY.md").read_text()
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()


GUIDES = [README, *(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))]
RESULTS = [path.read_text() for path in sorted((ROOT / "docs" / "results").glob("*.md"))]
PROGRAMS = {
    "orchestra-sim": Config,
    "orchestra-server": ServerConfig,
    "orchestra-client": ClientConfig,
    "orchestra-evaluate": EvaluateConfig,
    "orchestra-embed": EmbedConfig,
    "orchestra-label": LabelConfig,
    "orchestra-compare": CompareConfig,
    "orchestra-export": ExportConfig,
    "orchestra-top": TopConfig,
}


def commands():
    for line in "\n".join([*GUIDES, *RESULTS]).replace("\\\n", " ").splitlines():
        for program in PROGRAMS:
            if f"{program} " in line:
                words = line.split(program, 1)[1].split(" #")[0].strip("` ").split()
                arguments = [w for w in words if re.fullmatch(r"[\w.]+=[^<>`]+", w)]
                # Those with plug-ins are run by tests/test_contributing.py.
                whole = not any(word in line for word in ("resume=", "plugins=", "method=..."))
                if arguments and words[0] == arguments[0] and whole:
                    yield program, arguments


def test_there_are_commands_of_every_program():
    assert {program for program, _ in commands()} == set(PROGRAMS)


@pytest.mark.parametrize(("program", "arguments"), [*commands()])
def test_every_command_in_the_guides_composes(program, arguments):
    if {"model=timm", "preset=adapt"} & {*arguments}:
        pytest.importorskip("timm", reason="needs the extra timm")
    load(PROGRAMS[program], arguments, all_read=True)


def test_every_experiment_in_the_guides_is_there_and_the_other_way_round():
    lines = re.findall(r"orchestra-experiment (experiment=[^#`\n]*)", "\n".join(GUIDES))
    assert lines
    for line in lines:
        words = dict(word.split("=", 1) for word in shlex.split(line))
        load_experiment(words["experiment"])
        load_scale(words.get("scale", "small"))
        load_config([
            f"{key}={value}"
            for key, value in words.items()
            if key not in (*EXPERIMENT_KEYS, "data.root")
        ])  # fmt: skip
    guide = (ROOT / "docs" / "experiments.md").read_text()
    assert sorted(re.findall(r"^\| `(\w+)` \|", guide, re.M)) == sorted(experiment_names())


def key_commands():
    lines = re.findall(r"(?m)^(?:echo .* \| )?orchestra-keys ([a-z]+.*)", "\n".join(GUIDES))
    return [line.split() for line in lines]


def test_every_command_about_keys_runs_as_it_stands_in_the_guides(tmp_path, monkeypatch, capsys):
    """In the guide's order; only the key that is registered is the one made a line before."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sites.csv").write_text("name,images\nclinic,/data/photos\n")
    ran = []
    for arguments in key_commands():
        if arguments[0] == "register":
            made = (tmp_path / "security" / "client.pub").read_text()
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(made.encode())))
        assert keys_main(arguments) == 0, capsys.readouterr().err
        ran.append(arguments[0])
    assert ran == ["server", "client", "register", "site", "site"]
    assert len(list((tmp_path / "security" / "clients").iterdir())) == 1


def test_links_between_the_guides_lead_somewhere():
    names = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")
    at_the_top = [((ROOT / name).read_text(), ROOT) for name in names]
    for guide, folder in (*at_the_top, *((text, ROOT / "docs") for text in GUIDES[1:])):
        for target in re.findall(r"\]\((?!http)([^)#]+)", guide):
            assert (folder / target).exists(), target


def test_the_tests_that_hold_what_security_promises_are_there():
    named = re.findall(r"`((?:tests|benchmarks)/[^`]+)`", SECURITY)
    assert len(named) > 5 and all((ROOT / path).exists() for path in named), named


CHOICES = {
    name: field.annotation
    for name, field in Config.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Choice)
} | {"terms": TermConfig}


def options(choice):
    """The options that one plug-in or the other of a kind has."""
    return {key for plugin in choice.room.found().values() for key in plugin.Settings.model_fields}


@pytest.fixture(scope="module")
def tables_module():
    path = ROOT / "docs" / "site" / "configuration_tables.py"
    spec = importlib.util.spec_from_file_location("configuration_tables", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_of_the_configuration_are_made_from_conf(tables_module):
    page = tables_module.page_text()
    assert page == CONFIGURATION, "python docs/site/configuration_tables.py"
    for group, choice in CHOICES.items():
        part = page.partition(f"\n### {group}\n")[2].partition("\n### ")[0]
        for name in choice.room.found() if group != "terms" else ():
            assert f"`{group}={name}`" in part
        missing = {key for key in options(choice) if f"`{group}.{key}" not in part}
        assert not missing or group == "terms", (group, missing)
    cells = [
        cell for line in page.splitlines() if line.startswith("|") for cell in line.split(" | ")
    ]
    assert max(len(cell.split()) for cell in cells) <= 26  # 20 and "of `a` and 9 others:"


def test_a_long_cell_is_refused(tables_module):
    with pytest.raises(ValueError, match="a comment of more than 20 words"):
        tables_module._cell("word " * 21)


@pytest.mark.parametrize("group", CHOICES)
def test_every_choice_has_its_configuration(group):
    files = {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")}
    named = set(CHOICES[group].room.found())
    assert named <= files
    for variant in files - named:  # of one of them
        text = (ROOT / "conf" / group / f"{variant}.yaml").read_text()
        assert re.search(r"^defaults:(?: \[|\n  - )(\w+)", text, re.M)[1] in named


def test_the_page_of_base_classes_has_that_of_each_room():
    page = (ROOT / "docs" / "plug-ins.md").read_text()
    for room in ROOMS.values():
        assert re.search(rf"^::: {room.package}\.(\w+\.)?{room.base}$", page, re.M), room


def test_files_and_modules_that_the_guides_name_exist():
    """`docs/x.md`, `orchestra_flwr/x.py`, `methods/x.py`, `orchestra_flwr.x`."""
    homes = (ROOT, ROOT / "orchestra_flwr", ROOT / "benchmarks")
    for guide in GUIDES:
        prose = re.sub(r"```.*?```", "", guide, flags=re.S)
        for name in re.findall(r"`((?:\w+/)+\w*(?:\.(?:py|yaml|md|json|sh))?)`", prose):
            first = name.split("/")[0]
            # What runs leave behind is in a checkout or not.
            if first != "outputs" and any((home / first).is_dir() for home in homes):
                assert any((home / name).exists() for home in homes), name
        for name in re.findall(r"orchestra_flwr\.([a-z_.]+)", prose):
            place = ROOT / "orchestra_flwr" / name.strip(".").replace(".", "/")
            assert place.is_dir() or place.with_suffix(".py").is_file() or "." not in name, name
