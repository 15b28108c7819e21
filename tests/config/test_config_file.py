"""A `config.yaml` that was damaged, or edited by hand, is one line that names it."""

import pytest

from orchestra_flwr.config import ConfigError, EvaluateConfig, load, load_config, read_config_file

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
