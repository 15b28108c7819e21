"""A `config.yaml` may be damaged, edited by hand, or a stranger's: it is data, or one line."""

import os
import time

import pytest

from orchestra_flwr.config import (
    ConfigError,
    EvaluateConfig,
    config_to_yaml,
    load,
    load_config,
    read_config_file,
    read_run,
)
from orchestra_flwr.config.reading.saved_config import MAX_BYTES

NO_CONFIGURATION = {
    "binary": b"\x00\xff\x01" * 30,
    "latin-1": "name: M\u00fcller\n".encode("latin-1"),
    "a list": b"- a\n- b\n",
    "a number": b"3\n",
    "a number of many digits": b"seed: " + b"9" * 99999,
    "cut": b"federation: {clients: 3,",
    "nothing": b"",
    "control": b"name: \x07\n",
    "a circle": b"name: &x [*x]\n",
    "an alias": b"name: &x a\nrun_dir: *x\n",
    "deep": b"[" * 99999,
    "deep in lists": b"- " * 50000,
    "deep in keys": b"? " * 50000,
    "an object": b"name: !!python/object:os.system {}\n",
    "a set": b"name: !!set {b, c}\n",
    "two documents": b"name: a\n---\nname: b\n",
    "a key twice": b"data: {}\na:\n  b: 1\n  b: 2\n",
    "a key that is a list": b"? [a]\n: b\n",
}
# Nine aliases of ten each, ten levels deep: a billion values in a kilobyte.
BOMB = "a0: &a0 [x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
WRONG_SECTIONS = b"federation: 3\ntraining: [1]\nengine: ray\nray: 7\nmethod: x\ndata: 9\n"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "config.yaml"


def refusal(call, *arguments):
    with pytest.raises(ConfigError) as error:
        call(*arguments)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500
    return str(error.value)


def refused_everywhere(file):
    """The line with which a command refuses it, whatever reads it."""
    text = refusal(read_config_file, file)
    assert refusal(load_config, [f"resume={file.parent}"]) == text
    assert refusal(load(EvaluateConfig, [f"run={file.parent}"]).images) == text
    return text


@pytest.mark.parametrize("content", NO_CONFIGURATION.values(), ids=NO_CONFIGURATION)
def test_what_is_no_configuration_is_one_line(file, content):
    file.write_bytes(content)
    text = refused_everywhere(file)
    assert text.startswith(str(file)) and "is damaged" in text


def test_a_small_file_is_no_large_configuration(file):
    """Aliases of aliases in a kilobyte took minutes, and all memory."""
    assert len(BOMB) < 1024
    file.write_text(BOMB)
    began = time.monotonic()
    assert refused_everywhere(file) == (
        f"{file}, line 1: is damaged, it is no plain YAML (anchors, aliases and tags, & * !, "
        "are not allowed)"
    )
    assert time.monotonic() - began < 10


def test_a_file_is_no_larger_than_configurations_are(file):
    with file.open("wb") as large:
        large.truncate(2**40)
    assert refused_everywhere(file) == f"{file}: is damaged, it has more than {MAX_BYTES:,} bytes"
    lines = "".join(f"key{n}: [1, 2, {{a: {n}}}]\n" for n in range(4000))
    file.write_text(lines)
    assert len(lines) < MAX_BYTES and len(read_config_file(file)) == 4000


def test_nothing_is_resolved(file, monkeypatch):
    """`${oc.env:SECRET}` of a stranger's run became what it named on this machine."""
    monkeypatch.setenv("SECRET", "hunter2")
    texts = {"a": "${oc.env:SECRET}", "b": "${.a}", "c": "x${", "data": {"name": "${a}"}}
    file.write_text(config_to_yaml(texts))
    assert read_config_file(file) == texts


def test_a_text_is_read_as_it_was_written(file):
    texts = ("1e3", "1e-3", "010", "1_0", "null", "yes", "2020-01-02", "1:30", "", " a", "a: b #c")
    texts += ("M\u00fcller", "it's", '"', "???", "${seed}", "${", "*a", "&a", "!a", "a\nb")
    texts += (os.fsdecode(b"caf\xe9"),)
    values = {"texts": list(texts), "numbers": [1e-05, 1e300, -3, 0.1, True, None], "seed": 3}
    file.write_text(config_to_yaml({**values, "again": values["texts"]}))
    assert read_config_file(file) == {**values, "again": values["texts"]}


@pytest.mark.parametrize(
    ("written", "value"), [("1e3", 1000.0), ("1e-3", 0.001), ("-1E+3", -1000.0), ("1.5e3", 1500.0)]
)
def test_a_number_that_a_person_writes_is_one(file, written, value):
    file.write_text(f"a: {written}\n")
    assert read_config_file(file) == {"a": value}


def test_what_runs_write_is_what_they_had(file):
    config = load_config(["data=cifar10", "training.lr=1e-05", "name='1e3'"])
    file.write_text(config_to_yaml(config))
    again = load_config([f"resume={file.parent}"])
    assert again == config.model_copy(update={"resume": str(file.parent), "run_dir": again.run_dir})


def test_a_line_of_no_yaml_is_named(file):
    file.write_bytes(b"a: 1\nb: [2,\n")
    text = refusal(read_config_file, file)
    assert text.startswith(f"{file}, line 3: is damaged, it is no plain YAML (")


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


def test_a_servers_run_is_read_as_the_run_that_its_clients_had(tmp_path, tiny):
    from orchestra_flwr.deployment.server_config import ServerConfig

    server = load(ServerConfig, ["method=simclr", "training.lr=0.02", "port=0"])
    (tmp_path / "config.yaml").write_text(config_to_yaml(server))
    run = read_run(tmp_path)
    assert (run.method.name, run.training.lr) == ("simclr", 0.02)
    assert run.federation == server.federation


def test_a_run_that_asks_for_packages_which_nobody_named_is_refused(tmp_path, tiny):
    values = {**tiny().model_dump(), "plugins": ["strange"]}
    (tmp_path / "config.yaml").write_text(config_to_yaml(values))
    with pytest.raises(ConfigError, match=r"config.yaml asks for plugins=\[strange\]"):
        read_run(tmp_path)
