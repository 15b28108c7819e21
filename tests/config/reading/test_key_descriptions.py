"""--help explains every key in a line, and a group with its choices."""

import pytest
import yaml

from orchestra_flwr.config import (
    Config,
    ConfigError,
    EvaluateConfig,
    config_to_yaml,
    described,
    load_config,
)
from orchestra_flwr.deployment.client_config import ClientConfig
from orchestra_flwr.deployment.server_config import ServerConfig


def unexplained(text):
    """The lines of keys that nothing is said about."""
    lines = text.splitlines()
    return [line for line in lines if line.strip() and "#" not in line and line.rstrip()[-1] != ":"]


@pytest.mark.parametrize("section", [Config, ServerConfig, ClientConfig, EvaluateConfig])
def test_every_key_of_every_command_is_explained(section):
    text = described(section).every_key()
    assert unexplained(text) == []
    assert yaml.safe_load(text).keys() >= {"device", "plugins"}
    assert ("(preset=adapt, dec_ssl, " in text) == issubclass(section, Config)


def test_what_pretrained_weights_suggest_is_shown():
    pytest.importorskip("timm", reason="needs the extra timm")
    given = ["data=cifar10", "model=timm", "model.timm=test_resnet", "model.weights=x.safetensors"]
    values = yaml.safe_load(described(Config, given).every_key())
    assert values["data"]["image_size"] == values["model"]["image_size"] == 160
    assert values["model"]["batch_norm"] == "frozen"


CHOICES = {
    name: list(field.annotation.room.found())
    for name, field in Config.model_fields.items()
    if isinstance(field.annotation, type) and hasattr(field.annotation, "room")
}


@pytest.mark.parametrize("number", range(max(map(len, CHOICES.values()))))
def test_every_choice_and_each_of_its_keys_is_explained(number):
    """One of each group at once, since Hydra takes long."""
    chosen = {group: names[number] for group, names in CHOICES.items() if number < len(names)}
    page = described(Config, [f"{group}={name}" for group, name in chosen.items()])
    for group, name in chosen.items():
        overview, _, keys = page.group(group).partition(f"\n{group}:\n")
        (line,) = [x for x in overview.splitlines() if x.split()[:1] == [f"{group}={name}"]]
        assert len(line.split()) > 3, line
        assert unexplained(keys) == []
        assert yaml.safe_load(keys)["name"] == name


@pytest.mark.parametrize("group", ["federation", "training", "clustering", "evaluation", "preset"])
def test_groups_of_files_alone_are_explained(group):
    overview, _, keys = described(Config).group(group).partition(f"\n{group}:\n")
    choices = [line.split() for line in overview.splitlines() if line.startswith(f"  {group}=")]
    assert choices and all(len(words) > 3 for words in choices)
    assert bool(keys) == (group != "preset") and unexplained(keys) == []


def test_help_has_the_values_of_a_run():
    """Nothing but what only other values refer to is left out."""
    shown = yaml.safe_load(described(Config, ["data=cifar10"]).every_key())
    whole = yaml.safe_load(config_to_yaml(load_config(["data=cifar10"])))
    for section in ("training", "data", "clustering", "privacy", "optimizer"):
        assert shown[section] == {k: whole[section][k] for k in shown[section]}
    assert "paper" not in shown["method"]


@pytest.mark.parametrize("source", ["cifar10", "cifar100", "stl10", "tiny_imagenet", "stored"])
def test_photographs_are_not_explained_as_digits(source):
    assert "digit" not in described(Config, [f"data={source}"]).group("data").split("\ndata:")[1]


def test_a_users_own_choice_is_explained_from_its_file(user_package):
    code = "from orchestra_flwr.training.optimizers.sgd import SGD\nclass Mine(SGD): pass\n"
    conf = user_package({"optimizers/mine.py": code}) / "conf" / "optimizer"
    conf.mkdir(parents=True)
    (conf / "mine.yaml").write_text("# What I like best.\nname: mine\nmomentum: 0.5  # of mine\n")
    overview = described(Config, ["plugins=[my_package]", "optimizer=mine"]).group("optimizer")
    assert ["optimizer=mine", "What", "I", "like", "best."] in map(str.split, overview.splitlines())
    assert "momentum: 0.5" in overview and "# of mine" in overview


def test_a_users_own_choice_without_a_file_has_its_options(user_package):
    """Its name alone was shown."""
    user_package({"optimizers/mine.py": """
        from orchestra_flwr.config import Section
        from orchestra_flwr.training.optimizers.sgd import SGD

        class Mine(SGD):
            class Settings(Section):
                pull: float = 0.5
                widths: tuple[int, ...] = (3, 4)
                needed: int
    """})  # fmt: skip
    page = described(Config, ["plugins=[my_package]", "optimizer=mine", "+optimizer.needed=2"])
    for text in (page.group("optimizer").partition("\noptimizer:")[2], page.every_key()):
        assert "\n  name: mine\n  pull: 0.5\n  widths: [3, 4]\n  needed: 2\n" in text


def test_a_comment_on_an_option_or_a_name_is_for_that_choice_alone(user_package):
    """Those of other methods were shown for a user's, whose `ema` is its own."""
    user_package({"methods/mine.py": """
        from orchestra_flwr.methods.simclr import SimCLR

        class Mine(SimCLR):
            class Settings(SimCLR.Settings):
                ema: float = 0.5
    """})  # fmt: skip
    page = described(Config, ["plugins=[my_package]", "method=mine"])
    keys = page.group("method").partition("\nmethod:")[2]
    assert "\n  name: mine\n" in keys
    assert "\n  ema: 0.5\n" in keys
    assert "  # default: augmented" in keys  # `views` is an option of all methods


@pytest.mark.parametrize("content", [b"a: [1,\nb: }", b"a: 1  # \xff"])
def test_a_users_file_that_is_no_yaml_is_named_though_it_is_not_chosen(user_package, content):
    conf = user_package({}) / "conf" / "method"
    conf.mkdir(parents=True)
    (conf / "broken.yaml").write_bytes(content)
    page = described(Config, ["plugins=[my_package]"])
    for show in (page.every_key, page.words, lambda: page.group("method")):
        with pytest.raises(ConfigError, match="broken.yaml") as error:
            show()
        assert "\n" not in str(error.value)


def test_completion_knows_a_package_that_is_named_without_brackets(user_package):
    code = "from orchestra_flwr.training.optimizers.sgd import SGD\nclass Mine(SGD): pass\n"
    user_package({"optimizers/mine.py": code})
    named = described(Config, ["plugins=my_package"]).words()
    assert named == described(Config, ["plugins=[my_package]"]).words()


def test_a_group_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="^--help metod: must be one of .*did you mean method?"):
        described(Config).group("metod")
