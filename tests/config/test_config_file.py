"""A `config.yaml` that was damaged, or edited by hand, is one line that names it."""

import pytest
from omegaconf import OmegaConf

from orchestra_flwr.config import (
    ConfigError,
    EvaluateConfig,
    config_file,
    config_to_yaml,
    load,
    load_config,
    read_config_file,
)

NO_CONFIGURATION = {
    "binary": b"\x00\xff\x01" * 30,
    "latin-1": "name: M\u00fcller\n".encode("latin-1"),
    "a list": b"- a\n- b\n",
    "a number": b"3\n",
    "cut": b"federation: {clients: 3,",
    "nothing": b"",
    "control": b"name: \x07\n",
    "a circle": b"name: &x [*x]\n",
    "deep": b"[" * 99999,
    "deep in lists": b"- " * 99999,
    "deep in keys": b"? " * 99999,
    "an object": b"name: !!python/object:os.system {}\n",
    "nowhere": b"name: ${no.such.key}\n",
    "a set": b"name: !!set {b, c}\n",
}
WRONG_SECTIONS = b"federation: 3\ntraining: [1]\nengine: ray\nray: 7\nmethod: x\ndata: 9\n"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "config.yaml"


def refusal(call, *arguments):
    with pytest.raises(ConfigError) as error:
        call(*arguments)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500
    return str(error.value)


@pytest.mark.parametrize("content", NO_CONFIGURATION.values(), ids=NO_CONFIGURATION)
def test_what_is_no_configuration_is_one_line(file, content):
    file.write_bytes(content)
    text = refusal(read_config_file, file)
    assert text.startswith(str(file)) and ("must hold keys" in text or "is damaged" in text)
    assert refusal(load_config, [f"resume={file.parent}"]) == text
    assert refusal(load(EvaluateConfig, [f"run={file.parent}"]).images) == text


SCALARS = (
    *("1", "-1", "0x1f", "0o7", "010", "1_000", "1.5", "-.5", ".5", "5.", "1e3", "1e-3", "-1E+3"),
    *("1.5e3", "1.e5", "1_0e3", ".5e3", ".5e-3", "1e", "e3", "1e3x", "1:30", "1:30.5", ".inf"),
    *("-.Inf", ".nan", "nan", "null", "~", "", "yes", "No", "on", "true", "True", "2020-01-02"),
    *("2020-01-02 03:04:05", "'1e3'", '"1e-3"', "'null'", "a b", "???", "[1, 1e3, a]", "{b: 1e3}"),
    *("Müller", "'it''s'", "a#b", "a #b", "0.", "+1", "+1e3", "1__0", "1__0e3"),
)


@pytest.mark.parametrize(
    "line", [*(f"a: {scalar}" for scalar in SCALARS), "1: b\n1.5: c", "a b: 1"]
)
def test_what_is_plain_is_read_as_by_omegaconf(file, line):
    file.write_text(f"{line}\nz: 0\n")
    assert config_file._plain(file.read_text()) is not None
    told = OmegaConf.to_container(OmegaConf.load(file), resolve=True)
    assert repr(read_config_file(file)) == repr({str(key): value for key, value in told.items()})


def test_what_runs_write_is_plain(file):
    text = config_to_yaml(load_config(["data=cifar10", "training.lr=1e-05", "name='1e3'"]))
    assert config_file._plain(text) == OmegaConf.to_container(OmegaConf.create(text))


def test_a_key_that_stands_twice_is_damage(file):
    file.write_text("data: {}\na:\n  b: 1\n  b: 2\n")
    assert "duplicate key b" in refusal(read_config_file, file)


def test_a_line_of_no_yaml_is_named(file):
    file.write_bytes(b"a: 1\nb: [2,\n")
    assert refusal(read_config_file, file).startswith(f"{file}, line 3: is damaged, it is no YAML")


def test_what_is_no_file_is_one_line(file):
    assert refusal(read_config_file, file) == f"{file}: cannot be read: No such file or directory"
    file.mkdir()
    assert refusal(read_config_file, file) == f"{file}: cannot be read: Is a directory"


@pytest.mark.parametrize("content", [WRONG_SECTIONS, b"name: mine\n", b"plugins: {a: 1}\n"])
def test_wrong_keys_in_a_file_name_the_file(file, content):
    file.write_bytes(content)
    assert refusal(load_config, [f"resume={file.parent}"]).startswith(f"{file}: ")


@pytest.mark.parametrize("content", [WRONG_SECTIONS, b"name: mine\n", b"data: {}\nplugins: 3\n"])
def test_wrong_images_in_a_file_name_the_file(file, content):
    file.write_bytes(content)
    text = refusal(load(EvaluateConfig, [f"run={file.parent}"]).images)
    assert text == f"{file}: is damaged, data and plugins must be those of a run"
