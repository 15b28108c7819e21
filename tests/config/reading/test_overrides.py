"""Overrides: what cannot be read is said in the command line's own words."""

import pytest

from orchestra_flwr.config import (
    Config,
    ConfigError,
    DataConfig,
    EvaluateConfig,
    config_to_yaml,
    described,
    load,
    load_config,
)
from orchestra_flwr.config.reading.overrides import read_overrides
from orchestra_flwr.data.image_files import FileOptions
from orchestra_flwr.deployment.client_config import ClientConfig
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.export.export_config import ExportConfig
from orchestra_flwr.from_python import _lines

ONE = "must be one value; several runs are orchestra-sim -m"
QUOTE = "a list is written [a,b], and a value with"


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("seed", "overrides are written key=value, not seed"),
        ("=3", "overrides are written key=value, not =3"),
        ("--multirun", "overrides are written key=value, not --multirun"),
        ("seed=1,2", f"seed=1,2: {ONE}, {QUOTE} a comma"),
        ("seed=range(1,3)", f"seed=range(1,3): {ONE}, {QUOTE} a comma"),
        ("device=a=b", f"device=a=b: cannot be read; {QUOTE} special characters is quoted: "),
        ("device=a(b)", "device=a(b): cannot be read; "),
        ("training.lr=${seed", "training.lr=${seed: cannot be read; "),
        ("training.lr=${nope}", "training.lr: must be given, there is no nope"),
        (
            "hydra.run.dir=x",
            "hydra.run.dir: unknown key (see --help); run_dir= names a run's folder",
        ),
        ("hydra/launcher=x", "hydra/launcher: unknown key"),
        ("data@more=digits", "data@more: unknown key"),
        ("scale=small", "scale: unknown key"),
        ("experiment=table1", "experiment: unknown key"),
        ("~terms", "~terms: there is nothing to delete"),
        ("~nonsense", "~nonsense: there is nothing to delete"),
        ("~method", "method: must be given"),
        ("clustering.globl_clusters=3", "clustering.globl_clusters: unknown option of clustering="),
        ("federation=nope", "federation=nope: must be one of dec_ssl, demo, device, silo, small"),
        ("preset=nope", "preset=nope: must be one of adapt, dec_ssl, dec_ssl_released, dec_ssl_s"),
        ("data={name:nope}", "data=nope: must be one of affine_digits, cifar10"),
        ("logging=1", "logging=1: must be given by its keys"),
        ("plugins.a=1", "plugins.a: unknown key"),
    ],
)
def test_what_cannot_be_read_is_one_line(override, says):
    with pytest.raises(ConfigError) as error:
        load_config([override])
    assert str(error.value).startswith(says) and "\n" not in str(error.value)
    assert "hydra.cc" not in str(error.value) and "add --multirun" not in str(error.value)


@pytest.mark.parametrize("key", ["evaluation.evry", "nonsense.key"])
def test_beside_a_preset_it_is_still_the_misspelt_key_that_is_unknown(key):
    with pytest.raises(ConfigError, match=rf"^{key}: unknown key"):
        load_config(["preset=mutual_information", f"{key}=3"])


@pytest.mark.parametrize("value", ["a,b", "a=b", "My photos (2020)", "[a]", "a b", "~/a,b"])
def test_a_quoted_value_is_taken_as_it_is(value):
    config = load_config(["data=image_folder", f"data.root='{value}'"])
    assert config.data.settings.root == value


PATHS = [
    "/Mädchen", "/写真/猫", "a,b", "a=b", "[a]", "{a: b}", "a b", " a ", "it's", '5" disk',
    "#1", "R&D", "a;b", "(1)", "100%", "a\\b", "a\\", "a\\'b", "'a'b'", "$HOME/x", "1e5", "2024",
    "true", "a:b", "~nobody-of-this-name/x", "!x", "*", "?", "|", "`ls`", "a\tb", "a\nb", "<x>",
    "@x", "🐈",
]  # fmt: skip
WORST = "/it's 5\" [ü], {写真: =a} (#1) R&D; 100% \\'$x\\ "  # every kind of them at once


@pytest.mark.parametrize("value", PATHS)
def test_a_path_is_read_literally(value):
    (override,) = read_overrides([f"+data.root={value}"], paths=["data.root"])
    assert (override.key_or_group, override.value()) == ("data.root", value)


@pytest.mark.parametrize("value", [WORST, "2024"])
def test_every_path_is_taken_as_it_is(value):
    config = load_config(["data=image_folder", f"data.root={value}", f"run_dir={value}"])
    assert config.data.settings.root == config.run_dir == value
    client = load(ClientConfig, ["server=a:1", f"data.root={value}", f"state={value}"])
    assert client.data.root == client.state == value
    server = load(ServerConfig, [f"security={value}", f"data.cache={value}"])
    assert server.security == server.data.settings.cache == value
    evaluated = load(EvaluateConfig, [f"run={value}", f"data.root={value}", "data=image_folder"])
    assert evaluated.run == evaluated.images().settings.root == value


def test_the_advice_to_quote_numbers_in_a_list_can_be_followed():
    with pytest.raises(ConfigError, match="method.classes.0=7: must be a text; .*quoted") as error:
        load_config(["method=supervised", "method.classes=[7,cat]"])
    advice = str(error.value).split('"')[1].replace("...", "cat")
    assert load_config(["method=supervised", advice]).method.settings.classes == ("7", "cat")


@pytest.mark.parametrize("overrides", [["data.label=1"], _lines({"data.label": "1"})])
def test_the_advice_to_quote_a_number_can_be_followed(overrides):
    """A column of a table may be called 1."""
    table = ["data=image_table", "data.root=photos", "data.table=labels.csv"]
    with pytest.raises(ConfigError, match="data.label=1: must be a text; .*quoted") as error:
        load_config([*table, *overrides])
    key, _, text = str(error.value).split('"')[1].partition("=")
    for quoted in ([f"{key}={text}"], _lines({key: text})):
        assert load_config([*table, *quoted]).data.settings.label == "1"


@pytest.mark.parametrize("name", ["2024", "true", "1e3", "a, b: (c) #1"])
def test_a_name_may_look_like_anything(name):
    assert load_config([f"name={name}"]).name == name


def test_a_file_of_results_may_have_a_number_for_a_name():
    assert load(EvaluateConfig, ["run=x", "name=2024"]).name == "2024"


def test_a_client_may_have_a_number_for_a_name():
    assert load(ClientConfig, ["server=a:1", "data.root=x", "name=07"]).name == "07"


def test_a_run_is_resumed_whatever_its_path(tmp_path):
    folder = tmp_path / WORST.lstrip("/")
    folder.mkdir()
    config = load_config([f"run_dir={folder}", "data=image_folder", f"data.root={WORST}"])
    (folder / "config.yaml").write_text(config_to_yaml(config), encoding="utf-8")
    again = load_config([f"resume={folder}", f"data.root={WORST}"])
    assert (again.resume, again.data.settings.root) == (str(folder), WORST)


def test_a_path_may_be_none_quoted_or_refer_to_a_key():
    config = load_config(["data=image_folder", "data.root='null'", "run_dir=null"])
    assert (config.data.settings.root, config.run_dir) == ("null", None)
    assert load_config(["name=x", "run_dir=/runs/${name}"]).run_dir == "/runs/x"
    assert load_config(["run_dir="]).run_dir == ""


def test_all_options_of_images_on_disk_are_paths():
    others = {"dataset", "table", "test_table"}  # the first a name, or a folder
    assert {*FileOptions.model_fields, *others} == set(DataConfig.paths)


def test_the_advice_to_quote_can_be_followed():
    with pytest.raises(ConfigError) as error:
        load_config(["data=huggingface", "data.dataset=x", "data.label=a,b"])
    advice = str(error.value).rpartition(": ")[2].strip('"')
    config = load_config(["data=huggingface", "data.dataset=x", advice])
    assert config.data.settings.label == "a,b"


def test_nothing_chosen_may_be_written_down():
    assert load_config(["preset=null", "plugins=null", "resume=null"]) == load_config()


def test_a_client_has_no_files_to_choose_from():
    with pytest.raises(ConfigError, match="^data=cifar10: must be given by its keys, such as data"):
        load(ClientConfig, ["server=a:1", "data=cifar10"])


@pytest.mark.parametrize("section", [Config, ClientConfig, EvaluateConfig, ExportConfig])
def test_help_shows_every_key(section):
    def keys(annotation, prefix=""):
        for name, field in annotation.model_fields.items():
            yield name
            if hasattr(field.annotation, "model_fields"):
                yield from keys(field.annotation)

    listed = {
        line.strip().partition(":")[0] for line in described(section).every_key().splitlines()
    }
    hidden = {"min_clients", "min_images"}  # of a server
    hidden |= {"unsupervised", "backbone"}  # of evaluation: see the documentation
    hidden |= {"test_share"}  # of sources whose images may have no test images
    hidden |= {"paper"}  # only other values refer to it
    assert set(keys(section)) - listed <= hidden


def test_help_shows_terms_and_options_and_follows_choices():
    listed = described(Config).every_key()
    for text in ("\n  proximal:\n    weight: 0", "optimizer:\n  name: sgd ", "\n  momentum: 0.9 "):
        assert text in listed
    assert "betas:" in described(Config, ["optimizer=adamw"]).every_key()
