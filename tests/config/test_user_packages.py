"""`plugins=[my_package]`: choices, options and terms of a user's own package."""

import pytest
from omegaconf import OmegaConf

from orchestra_flwr.config import (
    Config,
    ConfigError,
    EvaluateConfig,
    config_to_yaml,
    described,
    load,
    load_config,
)

PACKAGE = "plugins=[my_package]"
PARTITION = """
    from orchestra_flwr.config import Section
    from orchestra_flwr.data import Partition

    class _Settings(Section):
        fraction: float = 0.5

    class Mine(Partition):
        Settings = _Settings

        def split(self, labels, count, clients, seed):
            raise NotImplementedError
"""
METHOD = """
    from orchestra_flwr.methods.byol import BYOL

    class Mine(BYOL):
        pass
"""
TERM = """
    from orchestra_flwr.config import Section
    from orchestra_flwr.terms import Term

    class _Settings(Section):
        margin: float = 0.5

    class Mine(Term):
        Settings = _Settings

        def loss(self, method, batch, step):
            return step.losses.popitem()[1] * 0
"""
SOURCE = """
    from orchestra_flwr.config import Section
    from orchestra_flwr.data import Source

    class _Settings(Section):
        myoption: int = 1

    class Mine(Source):
        Settings = _Settings

        def load(self):
            raise NotImplementedError
"""


def refused(*overrides, section=Config):
    with pytest.raises(ConfigError) as error:
        load(section, overrides)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_plugin_without_a_file_of_values(user_package):
    user_package({"partitions/mine.py": PARTITION})
    config = load_config([PACKAGE, "partition=mine"])
    assert config.partition.plugin.__module__ == "my_package.partitions.mine"
    assert config.partition.settings.fraction == 0.5
    for override in (
        "partition.fraction=.25",
        "+partition.fraction=.25",
        "++partition.fraction=.25",
    ):
        for order in ([override, "partition=mine"], ["partition=mine", override]):
            assert load_config([PACKAGE, *order]).partition.settings.fraction == 0.25
    assert Config.from_json(config.to_json()) == config


@pytest.mark.parametrize("model", ["vit_tiny", "cct", "timm"])
def test_a_source_without_a_file_of_values_goes_with_models_of_one_image_size(user_package, model):
    if model == "timm":
        pytest.importorskip("timm", reason="needs the extra timm")
    user_package({"sources/mine.py": "from orchestra_flwr.data import Source\nclass Mine(Source):\n"
                                     "    def load(self): ..."})  # fmt: skip
    chosen = [PACKAGE, "data=mine", f"model={model}"]
    assert load_config(chosen).model.settings.image_size == 32
    assert load_config([*chosen, "data.image_size=48"]).model.settings.image_size == 48


@pytest.mark.parametrize("plugins", ["plugins=my_package", "+plugins=[my_package]",
                                     "++plugins=['my_package']"])  # fmt: skip
def test_ways_to_name_a_package(user_package, plugins):
    user_package({"partitions/mine.py": PARTITION, "conf/partition/mine.yaml": "name: mine"})
    config = load_config([plugins, "partition=mine"])
    assert config.plugins == ("my_package",) and config.partition.name == "mine"


def test_a_plugin_with_a_file_of_values(user_package):
    user_package({
        "partitions/mine.py": PARTITION,
        "conf/partition/mine.yaml": "name: mine\nfraction: 0.125",
        "conf/partition/half.yaml": "name: mine\nfraction: 0.5",
    })  # fmt: skip
    assert load_config([PACKAGE, "partition=mine"]).partition.settings.fraction == 0.125
    assert load_config([PACKAGE, "partition=half"]).partition.settings.fraction == 0.5
    named = load_config([PACKAGE, "partition=mine", "partition.fraction=.75"])
    assert named.partition.settings.fraction == 0.75
    assert "fraction: 0.125" in described(Config, [PACKAGE, "partition=mine"]).every_key()


def test_a_file_of_values_may_refer_to_others(user_package):
    text = "name: mine\nema: ${.paper.${training.setting}.ema}\npaper:\n"
    text += "  device: {lr: 0.25, ema: 0.5}\n  silo: {lr: 0.75, ema: 0.9}\n"
    user_package({"methods/mine.py": METHOD, "conf/method/mine.yaml": text})
    config = load_config([PACKAGE, "data=cifar10", "method=mine"])
    assert (config.training.lr, config.method.settings.ema) == (0.25, 0.5)
    silo = load_config([PACKAGE, "data=cifar10", "training=silo", "method=mine"])
    assert (silo.training.lr, silo.method.settings.ema) == (0.75, 0.9)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "name: mine\nfracton: 1",
            ": partition.fracton: unknown option of partition=mine, which has",
        ),
        ("name: mine\nfraction: x", ": partition.fraction=x: input should be a valid number"),
        ("name: mien", ": partition=mien: must be one of"),
        ("nme: mine", ": partition.name: must be given"),
        (
            "name: mine\nfraction: ${no.where}",
            ": partition.fraction: must be given, there is no no.",
        ),
        ("name: mine\n fraction: 1", ", line 2: is no YAML (mapping values are not allowed here)"),
    ],
)
def test_an_error_in_a_file_of_values_names_the_file(user_package, text, says):
    folder = user_package({"partitions/mine.py": PARTITION, "conf/partition/mine.yaml": text})
    assert refused(PACKAGE, "partition=mine").startswith(f"{folder}/conf/partition/mine.yaml{says}")


def test_an_error_in_a_preset_names_its_file_and_no_other_commands_key(user_package):
    text = "# @package _global_\nfederation:\n  cleints: 3"
    folder = user_package({"conf/preset/mine.yaml": text})
    assert refused(PACKAGE, "preset=mine") == (
        f"{folder}/conf/preset/mine.yaml: federation.cleints: unknown key "
        "(did you mean federation.clients?)"
    )


def test_a_preset_sets_keys_of_every_section_and_a_run_with_it_is_resumed(user_package, tmp_path):
    text = "# @package _global_\nseed: 3\nprivacy:\n  k_min: 5\nfederation:\n  rounds: 2"
    user_package({"conf/preset/mine.yaml": text})
    config = load_config([PACKAGE, "preset=mine"])
    assert (config.seed, config.privacy.k_min, config.federation.rounds) == (3, 5, 2)
    (tmp_path / "config.yaml").write_text(config_to_yaml(config))
    assert load_config([PACKAGE, "preset=mine", f"resume={tmp_path}"]).seed == 3
    assert load_config([PACKAGE, "preset=mine", "seed=4"]).seed == 4


def test_an_error_on_the_command_line_names_no_file(user_package):
    file = "name: mine\nfraction: 0.5"
    user_package({"partitions/mine.py": PARTITION, "conf/partition/mine.yaml": file})
    assert refused(PACKAGE, "partition=mine", "partition.fraction=x").startswith(
        "partition.fraction"
    )
    assert refused(PACKAGE, "partition=mine", "federation.rounds=x").startswith("federation.rounds")


def test_a_method_without_values_of_a_paper_needs_a_learning_rate(user_package):
    user_package({"methods/mine.py": METHOD})
    error = refused(PACKAGE, "data=cifar10", "method=mine")
    assert error == "training.lr: must be given, there is no method.paper.device.lr"
    config = load_config([PACKAGE, "data=cifar10", "method=mine", "training.lr=.5"])
    assert (config.method.name, config.training.lr) == ("mine", 0.5)
    assert load_config([PACKAGE, "method=mine"]).training.lr == 0.03


def test_the_path_of_a_package_may_hold_anything(tmp_path, monkeypatch):
    root = tmp_path / "it's [my], own" / "place"
    (root / "odd_package" / "conf" / "preset").mkdir(parents=True)
    (root / "odd_package" / "__init__.py").touch()
    preset = "# @package _global_\nfederation:\n  rounds: 3\n"
    (root / "odd_package" / "conf" / "preset" / "short.yaml").write_text(preset)
    monkeypatch.syspath_prepend(root)
    assert load_config(["plugins=[odd_package]", "preset=short"]).federation.rounds == 3


def test_names_and_options_of_the_package_are_listed(user_package):
    user_package({"partitions/mine.py": PARTITION})
    names = (
        "must be one of by_class, dirichlet, features, flwr_datasets, groups, iid, "
        "prior_dirichlet, skew"
    )
    assert refused("partition=mine") == f"partition=mine: {names}"
    assert refused(PACKAGE, "partition=nope") == f"partition=nope: {names}, mine"
    assert refused(PACKAGE, "partition=mine", "partition.fractio=1") == (
        "partition.fractio: unknown option of partition=mine, which has share, cut, fraction "
        "(did you mean partition.fraction?)"
    )
    assert refused(PACKAGE, "partition=iid", "partition.fraction=1") == (
        "partition.fraction: unknown option of partition=iid, which has share, cut "
        "(partition=mine has it)"
    )


def test_a_package_that_cannot_be_imported_is_one_line(user_package):
    for plugins in ("plugins=[my_package]", "plugins=my_package", "++plugins=[my_package]"):
        assert refused(plugins) == (
            "plugins: my_package cannot be imported: "
            "ModuleNotFoundError: No module named 'my_package' "
            "(neither installed nor in a folder of PYTHONPATH)"
        )
    user_package({"__init__.py": "raise RuntimeError('two\\nlines')"})
    line = "plugins: my_package cannot be imported: RuntimeError: two lines"
    assert refused(PACKAGE) == line


@pytest.mark.parametrize("plugins", ["[a-b]", "[../x]", "['a b']", "[orchestra_flwr]", "[3]"])
def test_what_is_no_package_of_ones_own_is_refused(plugins):
    error = refused(f"plugins={plugins}")
    assert error.startswith("plugins=[") and "must be names of Python packages" in error


def test_a_plugin_that_cannot_be_imported_is_one_line(user_package):
    user_package({"partitions/mine.py": "raise RuntimeError('two\\nlines')"})
    assert refused(PACKAGE, "partition=mine") == (
        "partition=mine: my_package.partitions.mine cannot be imported: RuntimeError: two lines"
    )
    assert load_config([PACKAGE]).partition.name == "dirichlet"


def test_a_plugin_named_like_one_of_ours_is_refused(user_package):
    user_package({"partitions/iid.py": PARTITION})
    for override in ("partition=iid", "partition.name=iid"):
        assert refused(PACKAGE, override) == (
            "partition=iid: iid is both in orchestra_flwr.data.partitions "
            "and in my_package.partitions: rename one"
        )


def test_a_term_of_the_package_is_given_by_its_weight(user_package):
    user_package({"terms/mine.py": TERM})
    config = load_config([PACKAGE, "terms.mine.weight=1", "terms.mine.margin=.25"])
    (term,) = config.active_terms
    assert (term.weight, term.settings.margin) == (1, 0.25)
    assert (
        refused("terms.mine.weight=1")
        == "terms.mine: must be one of alignment, proximal, verification"
    )
    assert (
        refused(PACKAGE, "terms.nope.weight=1")
        == "terms.nope: must be one of alignment, proximal, verification, mine"
    )
    assert refused(PACKAGE, "terms.proximal.margin=1") == (
        "terms.proximal.margin: unknown option of terms.proximal, which has weight "
        "(terms.mine has it)"
    )
    user_package({"conf/terms/mine.yaml": "weight: 0\nmargin: 0.125"})
    assert load_config([PACKAGE, "terms.mine.weight=1"]).active_terms[0].settings.margin == 0.125
    listed = described(Config, [PACKAGE]).every_key()
    assert "\n  mine:\n    weight: 0\n    margin: 0.125\n" in listed


def test_a_resumed_run_has_its_packages(user_package, tmp_path):
    user_package({
        "partitions/mine.py": PARTITION, "conf/partition/mine.yaml": "name: mine\nfraction: 0.125",
    })  # fmt: skip
    config = load_config([PACKAGE, "partition=mine"])
    (tmp_path / "config.yaml").write_text(config_to_yaml(config))
    for overrides in ([], ["partition=mine"], [PACKAGE], ["partition.fraction=0.125"]):
        again = load_config([f"resume={tmp_path}", *overrides])
        assert (again.plugins, again.partition) == (config.plugins, config.partition)
    error = refused(f"resume={tmp_path}", "partition=iid")
    assert error.startswith("partition=iid: a resumed run keeps its own configuration")


def test_a_source_of_the_package_is_evaluated(user_package, tmp_path):
    user_package({"sources/mine.py": SOURCE})

    def images(*overrides):
        return load(EvaluateConfig, [f"run={tmp_path}", *overrides]).images()

    chosen = images(PACKAGE, "data=mine", "data.myoption=3", "data.image_size=16")
    assert (chosen.name, chosen.settings.myoption, chosen.image_size) == ("mine", 3, 16)
    assert refused(f"run={tmp_path}", "data=mine", section=EvaluateConfig) == (
        "data=mine: must be one of affine_digits, cifar10, cifar100, digits, huggingface, "
        "image_folder, image_table, stl10, stored, tiny_imagenet, camelyon17, domainnet, "
        "fed_isic2019, femnist, flair, inaturalist_user, landmarks_user, office_home, pacs"
    )
    with pytest.raises(ConfigError, match="^data.myoptoin: unknown option of data=mine, which"):
        images(PACKAGE, "data=mine", "data.myoptoin=3")
    with pytest.raises(ConfigError, match="^data.myoption: unknown option of data=digits"):
        images("data=digits", "data.myoption=3")

    # The run's own images, with its own packages, and another value of an option.
    run = OmegaConf.create(load_config([PACKAGE, "data=mine", "data.myoption=3"]).model_dump())
    OmegaConf.save(run, tmp_path / "config.yaml")
    assert images().settings.myoption == 3
    assert images("data.myoption=4").settings.myoption == 4


def test_resume_imports_only_packages_that_the_command_names(tmp_path, stranger):
    name, marker = stranger
    run = tmp_path / "run"
    run.mkdir()
    values = {**load_config(["engine=inline"]).model_dump(mode="json"), "plugins": [name]}
    (run / "config.yaml").write_text(config_to_yaml(values))
    reason = f"{run / 'config.yaml'} asks for plugins=[{name}], and only packages that you name"
    assert refused(f"resume={run}").startswith(reason)
    assert refused(f"resume={run}", "plugins=[]").startswith(reason)
    assert not marker.exists()
    assert load_config([f"resume={run}", f"plugins=[{name}]"]).plugins == (name,)
    assert marker.exists()


def test_the_images_of_a_run_import_only_packages_that_the_command_names(tmp_path, stranger):
    name, marker = stranger
    values = {"data": {"name": "mine"}, "plugins": [name]}
    (tmp_path / "config.yaml").write_text(config_to_yaml(values))
    evaluate = load(EvaluateConfig, [f"run={tmp_path}"])
    with pytest.raises(ConfigError, match=rf"asks for plugins=\[{name}\]"):
        evaluate.images()
    assert not marker.exists()
    # Of a run whose images are a source of this package nothing is imported.
    values = {"data": {"name": "digits"}, "plugins": [name]}
    (tmp_path / "config.yaml").write_text(config_to_yaml(values))
    assert evaluate.images().name == "digits" and not marker.exists()
