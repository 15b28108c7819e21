"""Overrides: what cannot be read is said in the command line's own words."""

import pytest

from orchestra_flwr.config import Config, ConfigError, EvaluateConfig, every_key, load, load_config
from orchestra_flwr.deployment.client_config import ClientConfig

QUOTE = "a list is written [a,b], and a value with"


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("seed", "overrides are written key=value, not seed"),
        ("=3", "overrides are written key=value, not =3"),
        ("--multirun", "overrides are written key=value, not --multirun"),
        ("seed=1,2", f"seed=1,2: must be one value; {QUOTE} a comma"),
        ("seed=range(1,3)", f"seed=range(1,3): must be one value; {QUOTE} a comma"),
        ("name=a=b", f"name=a=b: cannot be read; {QUOTE} special characters is quoted: "),
        ("name=a(b)", "name=a(b): cannot be read; "),
        ("training.lr=${seed", "training.lr=${seed: cannot be read; "),
        ("training.lr=${nope}", "training.lr: must be given, there is no nope"),
        ("hydra.run.dir=x", "hydra.run.dir: unknown key"),
        ("hydra/launcher=x", "hydra/launcher: unknown key"),
        ("data@more=digits", "data@more: unknown key"),
        ("scale=small", "scale: unknown key"),
        ("experiment=table1", "experiment: unknown key"),
        ("~terms", "~terms: there is nothing to delete"),
        ("~nonsense", "~nonsense: there is nothing to delete"),
        ("~method", "method: must be given"),
        ("clustering.globl_clusters=3", "clustering.globl_clusters: unknown key (did you mean "),
        ("federation=nope", "federation=nope: must be one of device, silo, small"),
        ("preset=nope", "preset=nope: must be one of released_code"),
        ("data={name:nope}", "data=nope: must be one of cifar10"),
        ("logging=1", "logging=1: must be given by its keys"),
    ],
)
def test_what_cannot_be_read_is_one_line(override, says):
    with pytest.raises(ConfigError) as error:
        load_config([override])
    assert str(error.value).startswith(says) and "\n" not in str(error.value)
    assert "hydra.cc" not in str(error.value) and "add --multirun" not in str(error.value)


@pytest.mark.parametrize("value", ["a,b", "a=b", "My photos (2020)", "[a]", "a b", "~/a,b"])
def test_a_quoted_value_is_taken_as_it_is(value):
    config = load_config(["data=image_folder", f"data.root='{value}'"])
    assert config.data.settings.root == value


def test_the_advice_to_quote_can_be_followed():
    with pytest.raises(ConfigError) as error:
        load_config(["run_dir=a,b"])
    advice = str(error.value).rpartition(": ")[2].strip('"')
    assert load_config([advice]).run_dir == "a,b"


def test_nothing_chosen_may_be_written_down():
    assert load_config(["preset=null", "plugins=null", "resume=null"]) == load_config()


def test_a_client_has_no_files_to_choose_from():
    with pytest.raises(ConfigError, match="^data=cifar10: must be given by its keys, such as data"):
        load(ClientConfig, ["server=a:1", "data=cifar10"])


@pytest.mark.parametrize("section", [Config, ClientConfig, EvaluateConfig])
def test_help_shows_every_key(section):
    def keys(annotation, prefix=""):
        for name, field in annotation.model_fields.items():
            yield name
            if hasattr(field.annotation, "model_fields"):
                yield from keys(field.annotation)

    told = {line.strip().partition(":")[0] for line in every_key(section).splitlines()}
    hidden = {"min_clients", "min_images"}  # of a server
    hidden |= {"unsupervised", "backbone"}  # of evaluation: see the documentation
    assert set(keys(section)) - told <= hidden


def test_help_shows_terms_and_options_and_follows_choices():
    told = every_key(Config)
    for text in ("terms:\n  proximal:\n    weight: 0", "optimizer:\n  name: sgd\n  momentum: 0.9"):
        assert text in told
    assert "betas:" in every_key(Config, ["optimizer=adamw"])
