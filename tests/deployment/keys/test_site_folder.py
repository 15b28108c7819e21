"""What a site gets: all that it needs, and no secret."""

import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from orchestra_flwr import __version__
from orchestra_flwr.config import load
from orchestra_flwr.deployment.client_config import ClientConfig
from orchestra_flwr.deployment.keys.client_registry import registered
from orchestra_flwr.fingerprints import file_sha256

REPOSITORY = Path(__file__).parents[3]
FILES = {"start.sh", "client.conf", "security/ca.crt"}
SERVER = "server=example.org:8443"


def files_of(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def secrets_of(folder):
    return [line for p in folder.rglob("*.key") for line in p.read_bytes().splitlines()[1:-1]]


def test_a_sites_folder_has_all_that_it_needs_and_no_secret(keys, security):
    code, out, _ = keys("site", "name=hospital-a", SERVER, "images=/srv/my photos")
    assert code == 0 and "nothing in it is secret" in out and "register key=client.pub" in out
    folder = security / "sites" / "hospital-a"
    files = files_of(folder)
    assert set(files) == FILES and stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert files["security/ca.crt"] == (security / "ca.crt").read_bytes()
    secrets = secrets_of(security)
    assert secrets and not any(s in data for s in secrets for data in files.values())
    lines = [x for x in files["client.conf"].decode().splitlines() if x and x[0] != "#"]
    config = load(ClientConfig, lines, all_read=True)
    assert (config.host, config.data.root, config.state) == (
        "example.org",
        "/srv/my photos",
        "state",
    )
    assert f"version={__version__}\n" in files["start.sh"].decode() and b"@" not in files[
        "start.sh"
    ].replace(b'"$@"', b"")


def test_a_zip_is_the_same_folder_to_the_bit(keys, security):
    assert keys("site", "name=a", SERVER)[0] == 0
    code, out, _ = keys("site", "name=a", SERVER, "zip=true")
    archive = security / "sites" / "a.zip"
    assert code == 0 and f"{file_sha256(archive)}  a.zip\n" in out
    with zipfile.ZipFile(archive) as opened:
        zipped = {name: opened.read(name) for name in opened.namelist()}
    assert zipped == {f"a/{k}": v for k, v in files_of(security / "sites" / "a").items()}
    before = archive.read_bytes()
    archive.unlink()
    assert keys("site", "name=a", SERVER, "zip=true")[0] == 0
    assert archive.read_bytes() == before


def test_a_table_makes_fifty_sites(keys, security, tmp_path):
    rows = "".join(f"site-{i};/srv/photos/{i}\n" for i in range(100, 150))
    (tmp_path / "sites.csv").write_text("name;images\n" + rows)
    wheel = tmp_path / f"orchestra_flwr-{__version__}-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    assert keys("site", SERVER, "sites=sites.csv", "zip=true", f"wheel={wheel}")[0] == 0
    made = sorted((security / "sites").iterdir())
    assert len(made) == 50
    with zipfile.ZipFile(made[7]) as opened:
        assert b"data.root=/srv/photos/107\n" in opened.read("site-107/client.conf")
        assert opened.read(f"site-107/{wheel.name}") == b"wheel"


@pytest.mark.parametrize(
    ("arguments", "table", "says"),
    [
        (["name=a"], "", "server: must be given"),
        ([SERVER], "", "name, sites: one of them must be given"),
        ([SERVER, "name=a", "sites=x"], "", "name, sites: one of them must be given"),
        (["server=example.org", "name=a"], "", "server=example.org: must be HOST:PORT"),
        (["server=other.org:1", "name=a"], "", "other.org is not in security/server.crt"),
        ([SERVER, "name=../a"], "", "'../a' is no name of a client"),
        ([SERVER, "name=a", "images=x\ny"], "", "must be the path of a folder or a zip"),
        ([SERVER, "name=a", "folder=nowhere"], "", "folder=nowhere: no such folder"),
        ([SERVER, "name=a", "wheel=x.whl"], "", "wheel=x.whl: must be orchestra_flwr-"),
        ([SERVER, "name=a", "wheel=x.whl"], "", "--no-deps .` makes it of this version"),
        ([SERVER, "sites=none.csv"], "", "sites=none.csv"),
        ([SERVER, "sites=t.csv"], "name,path\na,b\n", "images"),
        ([SERVER, "sites=t.csv"], "name,images\n", "sites=t.csv: names no site"),
        ([SERVER, "sites=t.csv"], "name,images\na,/x\nb,\n", "line 3 has no name or no images"),
        ([SERVER, "sites=t.csv"], "name,images\na,/x\na,/y\n", "line 3: a has a second images"),
        ([SERVER, "sites=t.csv"], "name,images\na,/x\nb c,/y\n", "'b c' is no name"),
    ],
)  # fmt: skip
def test_what_is_wrong_makes_no_site_at_all(security, tmp_path, refused, arguments, table, says):
    (tmp_path / "t.csv").write_text(table)
    assert says in refused("site", *arguments)


def test_a_site_that_is_there_stays(keys, security, refused):
    assert keys("site", "name=a", SERVER)[0] == 0
    assert "sites/a exists already: remove it" in refused("site", "name=a", SERVER)


def start(folder, *arguments, cwd=None, **environment):
    return subprocess.run(
        ["sh", str(folder / "start.sh"), *arguments],
        cwd=cwd or folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(REPOSITORY), **environment},
    )  # fmt: skip


@pytest.mark.slow
def test_the_first_start_makes_the_key_at_the_site(keys, security, tmp_path):
    """Then the client starts, which here has no images; its settings end lines as on Windows."""
    empty = tmp_path / "photos"
    empty.mkdir()
    assert keys("site", "name=hospital-a", SERVER, f"images={empty}")[0] == 0
    folder = security / "sites" / "hospital-a"
    settings = (folder / "client.conf").read_bytes()
    (folder / "client.conf").write_bytes(settings.replace(b"\n", b"\r\n"))
    done = start(folder)
    assert {path.name for path in folder.iterdir()} == {"client.conf", "security", "start.sh"}
    assert done.returncode == 2 and "photos" in done.stderr.splitlines()[-1], done.stderr
    line = (folder / "security" / "client.pub").read_text()
    assert line.strip() in done.stdout and line.endswith(" hospital-a\n")
    assert stat.S_IMODE((folder / "security" / "client.key").stat().st_mode) == 0o600
    # What is given behind it counts more, with paths from where it is called.
    (tmp_path / "away" / "elsewhere").mkdir(parents=True)
    again = start(folder, "data.root=elsewhere", cwd=tmp_path / "away")
    assert "made" not in again.stdout and str(tmp_path / "away" / "elsewhere") in again.stderr
    assert (folder / "security" / "client.pub").read_text() == line
    assert keys("register", f"key={folder / 'security' / 'client.pub'}")[0] == 0
    assert "hospital-a" in registered(security)


def test_the_key_is_made_where_the_client_looks_for_it(keys, security, tmp_path):
    """Else the site registers one key, and its client comes with another."""
    assert keys("site", "name=a", SERVER, f"images={tmp_path}")[0] == 0
    folder, other = security / "sites" / "a", tmp_path / "my keys"
    done = start(folder, "security=my keys", cwd=tmp_path)
    assert (other / "client.pub").read_text().strip() in done.stdout
    assert not (folder / "security" / "client.key").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "error: data.root: must be given: sh start.sh data.root=/folder/of/images\n"),
        (["data.root=none"], "/none: no such folder or file\n"),
    ],
)
def test_no_key_is_made_where_the_images_are_not_there(keys, security, arguments, says):
    assert keys("site", "name=a", SERVER)[0] == 0
    folder = security / "sites" / "a"
    done = start(folder, *arguments)
    assert done.returncode == 2 and done.stderr.endswith(says) and done.stdout == ""
    assert not (folder / "security" / "client.key").exists()


def test_a_python_that_is_none_or_lacks_the_package_is_said_in_one_line(keys, security):
    assert keys("site", "name=a", SERVER)[0] == 0
    folder = security / "sites" / "a"
    script = (folder / "start.sh").read_text()
    (folder / "start.sh").write_text(script.replace(f"version={__version__}", "version=9.9"))
    done = start(folder, f"data.root={folder}")
    assert done.returncode == 2 and "orchestra_flwr 9.9 is not installed: install it" in done.stderr
    done = start(folder, f"data.root={folder}", PYTHON="/bin/false")
    assert done.returncode == 2 and "must be Python 3.11 or newer" in done.stderr
    assert not (folder / "security" / "client.key").exists()


PYTHON = """#!/bin/sh
case $* in
*"-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
*"pip install"*) echo "$@" >>installed ;;
*orchestra_flwr.__version__*) exit 1 ;;
esac
"""


def test_beside_the_wheel_of_an_earlier_version_its_own_is_installed(keys, security, tmp_path):
    """The site was upgraded: the new zip was unpacked over the old folder."""
    assert keys("site", "name=a", SERVER)[0] == 0
    folder, python = security / "sites" / "a", tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o700)
    (folder / "orchestra_flwr-0.0.1-py3-none-any.whl").touch()
    done = start(folder, f"data.root={folder}", PYTHON=str(python))
    assert done.returncode == 2 and f"orchestra_flwr {__version__} is not" in done.stderr
    wheel = folder / f"orchestra_flwr-{__version__}-py3-none-any.whl"
    wheel.touch()
    assert start(folder, f"data.root={folder}", PYTHON=str(python)).returncode == 0
    assert (folder / "installed").read_text() == f"-m pip install --quiet ./{wheel.name}\n"
