"""What `pyproject.toml` promises: commands, the Flower app, and the files of the wheel."""

import importlib
import io
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

import orchestra_flwr
from orchestra_flwr.deployment import __main__ as deployment

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def named(place):
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


COMMANDS = PROJECT["project"]["scripts"]


@pytest.mark.parametrize("place", COMMANDS.values())
def test_a_command_is_there(place):
    assert callable(named(named(place).args[0]))


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_while_a_command_is_imported_is_one_line(command):
    """It was a traceback, in the first second or, on a busy machine, the first five."""
    module, _, function = COMMANDS[command].partition(":")
    program = f"""if True:
        import sys
        class Interrupting:
            def find_spec(self, name, *_):
                if name == "pydantic":
                    raise KeyboardInterrupt
        sys.meta_path.insert(0, Interrupting())
        from {module} import {function}
        sys.exit({function}())
    """
    done = subprocess.run(
        [sys.executable, "-c", program, "--help"], capture_output=True, text=True, check=False
    )
    code = 0 if command == "orchestra-client" else 130  # as a client's --help promises
    assert (done.stderr, done.returncode) == ("stopped\n", code)


def test_flwr_run_takes_the_app():
    config, warnings = load_and_validate(ROOT / "pyproject.toml", check_module=True)
    assert config["tool"]["flwr"]["app"]["config"] == {"overrides": ""} and not warnings
    apps = PROJECT["tool"]["flwr"]["app"]["components"]
    assert isinstance(named(apps["serverapp"]), ServerApp)
    assert isinstance(named(apps["clientapp"]), ClientApp)


def test_the_archive_that_flwr_run_sends_holds_the_package_and_conf_alone(tmp_path):
    """Of a checkout with tests, guides, benchmarks and results of runs."""
    for name in ("conf", "docs", "orchestra_flwr", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("LICENSE", "Makefile", "README.md", "pyproject.toml", "run_sim.py", ".gitignore"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "config.yaml").touch()
    (tmp_path / "photos.json").touch()
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(tmp_path))) as archive:
        names = set(archive.namelist())
    sources = [*(ROOT / "orchestra_flwr").rglob("*.py"), *(ROOT / "conf").rglob("*.yaml")]
    assert names >= {str(file.relative_to(ROOT)) for file in sources}
    assert {name.partition("/")[0] for name in names} == {
        "orchestra_flwr", "conf", "README.md", "LICENSE", "pyproject.toml", ".info",
    }  # fmt: skip


FORCED = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
# What needs a checkout: Docker's context, checks of these files.
NOT_IN_THE_WHEEL = {"arm64.sh", "audit.py", "health.py", "requirements.py", "run_dockerfile.py"}


def test_the_wheel_holds_conf_and_what_an_installed_user_deploys():
    """`conf_dir` and `deployment` look for them inside an installed package."""
    there = {path.name for path in (ROOT / "deploy").iterdir()} - {"__pycache__"}
    names = there - NOT_IN_THE_WHEEL
    deployed = {f"deploy/{name}": f"orchestra_flwr/deploy/{name}" for name in names}
    assert {"conf": "orchestra_flwr/conf", **deployed} == FORCED
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["orchestra_flwr"]


class TestDeployFiles:
    """``python -m orchestra_flwr.deployment``."""

    def test_are_copied_out(self, tmp_path, capsys):
        assert deployment.main([f"folder={tmp_path}/new"]) == 0
        chart = "helm/orchestra-flwr/Chart.yaml"
        assert (tmp_path / "new" / chart).read_bytes() == (ROOT / "deploy" / chart).read_bytes()
        assert f"{tmp_path}/new/compose.yaml" in capsys.readouterr().out.splitlines()

    def test_are_copied_to_the_home_folder(self, tmp_path, monkeypatch):
        """Shells but bash leave the ~ behind a = as it is, and a folder of this name was made."""
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        assert deployment.main(["folder=~/new"]) == 0
        assert (tmp_path / "new" / "compose.yaml").is_file()

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            ([], "folder= must name the folder to be made"),
            (["fodler=x"], "folder= must name the folder to be made"),
            (["folder=."], "folder=.: cannot be made: File exists"),
        ],
    )
    def test_a_wrong_command_is_one_line(self, words, says, capsys):
        assert deployment.main(words) == 2
        assert capsys.readouterr().err.startswith(f"error: {says}")

    @pytest.mark.slow
    def test_of_a_wheel_are_copied_out(self, tmp_path):
        """Builds it, with what that needs from the package index, and installs it elsewhere."""
        uv, python = [sys.executable, "-m", "uv"], tmp_path / "env/bin/python"
        subprocess.run(
            [*uv, "build", "--quiet", "--wheel", "--out-dir", tmp_path, ROOT], check=True
        )
        subprocess.run([*uv, "venv", "--quiet", tmp_path / "env"], check=True)
        (wheel,) = tmp_path.glob("*.whl")
        install = [*uv, "pip", "install", "--quiet", "--no-deps", "--python", python, wheel]
        subprocess.run(install, check=True)
        libraries = Path(yaml.__file__).parents[1]  # the dependencies: minutes to download
        command = [python, "-m", "orchestra_flwr.deployment", "folder=made"]
        env = {"PYTHONPATH": str(libraries), "PATH": os.environ["PATH"]}
        subprocess.run(command, cwd=tmp_path, env=env, check=True)
        made = {path.name for path in (tmp_path / "made").iterdir()}
        assert made == {path.partition("/")[2] for path in FORCED if "/" in path}


class TestVersion:
    def test_is_that_of_the_project(self):
        assert orchestra_flwr.__version__ == PROJECT["project"]["version"]
        assert "__version__" in dir(orchestra_flwr)

    def test_is_asked_for_in_one_place(self):
        """The gate read an installation's metadata: a checkout's clients were refused."""
        sources = (ROOT / "orchestra_flwr").rglob("*.py")
        asking = [file for file in sources if re.search(r'version\("orchestra', file.read_text())]
        assert asking == [ROOT / "orchestra_flwr" / "__init__.py"]

    def test_is_the_newest_one_of_the_changelog_and_the_citation(self):
        headings = re.findall(r"(?m)^## (.+)$", (ROOT / "CHANGELOG.md").read_text())
        assert headings[0] == "Unreleased"
        version, day = re.fullmatch(r"(\S+) \((\d{4}-\d\d-\d\d)\)", headings[1]).groups()
        assert version == orchestra_flwr.__version__
        citation = (ROOT / "CITATION.cff").read_text()
        assert re.search(rf"(?m)^version: {re.escape(version)}$", citation)
        assert re.search(rf'(?m)^date-released: "{day}"$', citation)

    def test_is_that_of_the_images_in_deploy(self):
        files = (
            "compose.yaml",
            "helm/orchestra-flwr/Chart.yaml",
            "helm/orchestra-flwr/values.yaml",
        )
        for file in files:
            text = (ROOT / "deploy" / file).read_text()
            versions = re.findall(
                r"(?:orchestra-(?:server|client):|[vV]ersion: \"?)(\d+\.\d+\.\d+)", text
            )
            assert {*versions} == {orchestra_flwr.__version__}, file

    def test_is_where_a_tag_is_named(self):
        """`make release` says which tags of CHANGELOG git does not have."""
        text = (ROOT / "CHANGELOG.md").read_text()
        released = re.findall(r"(?m)^## (\d\S+) \(20.*\)\n\nTag `v(\S+)`", text)
        assert released == [(tag, tag) for tag in ("0.4.2", "0.4.1", "0.4.0", "0.3.0", "0.2.0")]

    def test_of_an_installed_package_is_that_of_its_metadata(self, tmp_path):
        """Also where another project's pyproject.toml lies in the folder of packages."""
        (tmp_path / "orchestra_flwr").mkdir()
        shutil.copy(orchestra_flwr.__file__, tmp_path / "orchestra_flwr")
        (tmp_path / "pyproject.toml").write_text('[project]\nname = "other"\nversion = "1"\n')
        about = tmp_path / "orchestra_flwr-9.8.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: orchestra-flwr\nVersion: 9.8\n"
        )
        program = "from orchestra_flwr import __version__; print(__version__)"
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout == "9.8\n"


class TestHostedFiles:
    """What a code host reads: .github/."""

    @pytest.mark.parametrize(
        "path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda p: p.stem
    )
    def test_is_valid_and_asks_for_something(self, path):
        content = yaml.safe_load(path.read_text())
        if path.parent.name == "ISSUE_TEMPLATE" and path.stem != "config":
            assert {"name", "description", "body"} <= content.keys()
            fields = content["body"]
            assert len({field["id"] for field in fields}) == len(fields)
            assert all(field["attributes"]["label"] for field in fields)
            assert any(field.get("validations", {}).get("required") for field in fields)

    def test_all_pythons_of_the_project_run_all_checks(self):
        job = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["check"]
        pythons = job["strategy"]["matrix"]["python"]
        named = [c.rpartition(" ")[2] for c in PROJECT["project"]["classifiers"] if ":: 3." in c]
        assert pythons == named
        assert PROJECT["project"]["requires-python"] == f">={pythons[0]}"
        assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
        assert os.access(ROOT / ".ci" / "run", os.X_OK)
        actions = [step["uses"] for step in job["steps"] if "uses" in step]
        assert actions and all(re.search(r"@v\d+$", action) for action in actions)


def test_types_are_offered_to_those_who_import_the_package():
    assert (ROOT / "orchestra_flwr" / "py.typed").is_file()
    assert "Typing :: Typed" in PROJECT["project"]["classifiers"]
