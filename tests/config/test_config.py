import os

import pytest
from pydantic import ValidationError

from orchestra_flwr.config import Config, ConfigError, load_config


def test_defaults_are_the_demo():
    config = load_config()
    assert [config.method.name, config.data.name, config.engine.name] == [
        "orchestra",
        "affine_digits",
        "auto",
    ]
    assert config.name == "orchestra-affine_digits"
    assert (config.method.settings.ema, config.model.width) == (0.95, 16)
    assert config.federation.rounds == 10


def test_cifar10_is_the_papers_cross_device_run():
    config = load_config(["data=cifar10"])
    assert config.model.name == "resnet18"
    assert config.federation.clients == 100
    assert config.federation.participation == 0.5
    assert config.federation.rounds == 100
    assert config.training.local_epochs == 10
    assert config.training.batch_size == 16
    assert config.training.lr == 0.003
    assert config.clustering.global_clusters == 32
    assert config.clustering.local_clusters == 8
    options = {"ema": 0.996, "temperature": 0.1, "rotation": True, "target": True}
    assert config.method.options == options


@pytest.mark.parametrize(
    ("method", "device", "silo"),
    [
        ("orchestra", (0.003, 0.996), (0.01, 0.99)),
        ("byol", (0.01, 0.996), (0.03, 0.99)),
        ("simclr", (0.003, None), (0.03, None)),
        ("simsiam", (0.01, None), (0.03, None)),
        ("specloss", (0.003, None), (0.03, None)),
    ],
)
def test_every_method_takes_what_the_paper_tuned_for_it(method, device, silo):
    for setting, expected in (("device", device), ("silo", silo)):
        given = ["data=cifar10", f"method={method}", f"training.setting={setting}"]
        config = load_config(given)
        assert (config.training.lr, config.method.options.get("ema")) == expected
    assert load_config([*given, "training.lr=0.5"]).training.lr == 0.5


def test_a_given_decay_wins_over_the_papers():
    config = load_config(["data=cifar10", "method=byol", "method.ema=0.5"])
    assert config.method.options == {"ema": 0.5}


def test_the_papers_cross_silo_run():
    config = load_config(["data=cifar10", "federation=silo", "training=silo", "method=byol"])
    federation, training = config.federation, config.training
    assert (federation.clients, federation.participation, federation.rounds) == (10, 1, 100)
    assert (training.batch_size, training.local_epochs, training.lr) == (256, 10, 0.03)
    assert (config.merging.name, config.merging.settings.threshold) == ("fedu", 0.4)
    chosen = load_config(["federation=silo", "merging=fedema"])
    assert (chosen.merging.name, chosen.federation.rounds) == ("fedema", 100)
    assert (config.method.options, config.model.name) == ({"ema": 0.99}, "resnet18")


def test_the_preset_of_the_released_code():
    for given in ([], ["data=cifar10"], ["data=cifar10", "training=silo"]):
        config = load_config([*given, "preset=released_code"])
        assert (config.federation.weighting, config.training.drop_last) == ("batches", True)
    assert load_config(["preset=released_code", "training.drop_last=false"]).training.lr == 0.03


def test_cifar100_has_its_own_clusters():
    config = load_config(["data=cifar100"])
    assert (config.clustering.global_clusters, config.clustering.local_clusters) == (256, 16)


def test_the_command_line_wins_over_the_data_set():
    config = load_config(["data=cifar10", "model=convnet", "federation.clients=7"])
    assert (config.model.name, config.federation.clients) == ("convnet", 7)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("training.lrr=1", "training.lrr: unknown key (did you mean training.lr"),
        ("nonsense=1", "nonsense: unknown key"),
        ("+nonsense=1", "nonsense: unknown key"),
        ("federation.wire=int2", "federation.wire=int2: input should be 'float32', 'float16', "),
        ("partition.alpha=0", "partition.alpha=0: input should be greater than 0"),
        ("partition.alpha=-1", "partition.alpha=-1: input should be greater than 0"),
        ("federation.participation=1.5", "federation.participation=1.5: input should be less"),
        ("federation.participation=0", "federation.participation=0: input should be greater"),
        ("clustering.global_clusters=1", "clustering.global_clusters=1: input should be greater"),
        ("clustering.local_clusters=1", "clustering.local_clusters=1: input should be greater"),
        ("privacy.k_min=0", "privacy.k_min=0: input should be greater"),
        ("privacy.k_min=129", "privacy.k_min=129: must be at most clustering.memory=128"),
        ("privacy.clip=0", "privacy.clip=0: input should be greater than 0"),
        ("privacy.clip=1", "federation.weighting=samples: must be uniform with privacy.clip=1"),
        ("privacy.noise_multiplier=-1", "privacy.noise_multiplier=-1: input should be greater"),
        (
            "privacy.noise_multiplier=2e6",
            "privacy.noise_multiplier=2000000.0: input should be less",
        ),
        ("privacy.noise_multiplier=1", "privacy.noise_multiplier=1: privacy.clip must be given"),
        ("privacy.delta=0", "privacy.delta=0: input should be greater than or equal to 0.0000"),
        ("privacy.delta=1", "privacy.delta=1: input should be less than 1"),
        ("clustering=private", "privacy.epsilon: must be given with clustering=private"),
        ("privacy.epsilon=1", "privacy.epsilon=1: needs clustering=private"),
        ("privacy.dimensions=0", "privacy.dimensions=0: input should be greater than or equal"),
        ("privacy.dimensions=9", "privacy.dimensions=9: needs clustering=private"),
        ("privacy.epsilon=0", "privacy.epsilon=0: input should be greater than or equal to 0.0001"),
        ("privacy.epsilon=1e6", "privacy.epsilon=1000000.0: input should be less than or"),
        ("privacy.total_epsilon=3", "privacy.total_epsilon=3: needs clustering=private"),
        ("privacy.kmin=2", "privacy.kmin: unknown key (did you mean privacy.k_min"),
        ("training.lr=nan", "training.lr=nan: input should be a finite number"),
        ("training.lr=fast", "training.lr=fast: input should be a valid number"),
        (
            "training.precision=float16",
            "training.precision=float16: input should be 'float32' or 'bfloat16'",
        ),
        (
            "training.setting=home",
            "training.setting=home: input should be 'small', 'device', 'silo' or 'dec_ssl'",
        ),
        ("engine=dask", "engine=dask: must be one of auto, inline, ray"),
        ("device=tpu", "device=tpu: must be auto, cpu, cuda or cuda:N, such as cuda:0"),
        ("device=0", "device=0: must be auto, cpu, cuda or cuda:N, such as cuda:0"),
        (
            "data=imagenet",
            "data=imagenet: must be one of affine_digits, cifar10, cifar100, digits, ",
        ),
        (
            "preset=mine",
            "preset=mine: must be one of adapt, dec_ssl, dec_ssl_released, dec_ssl_small, ",
        ),
        ("merging=fedx", "merging=fedx: must be one of fedbn, fedema, fedu, replace"),
        ("resume=nowhere", "resume=nowhere: no run folder"),
        ("seed", "overrides are written key=value"),
    ],
)
def test_wrong_input_is_told_in_one_line_that_names_key_and_value(override, says):
    with pytest.raises(ConfigError) as error:
        load_config([override])
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)


def test_delta_is_below_one_in_all_clients():
    noisy = ["method=simclr", "privacy.clip=1", "privacy.noise_multiplier=1",
             "federation.weighting=uniform"]  # fmt: skip
    load_config([*noisy, "federation.clients=10", "privacy.delta=0.09"])
    with pytest.raises(ConfigError) as error:
        load_config([*noisy, "federation.clients=10", "privacy.delta=0.1"])
    assert str(error.value) == "privacy.delta=0.1: must be below 1 / federation.clients = 0.1"


def test_features_are_projected_to_fewer_dimensions_than_they_have():
    private = ["clustering=private", "privacy.epsilon=1", "model.projector_dim=64"]
    load_config([*private, "privacy.dimensions=63"])
    with pytest.raises(ConfigError) as error:
        load_config([*private, "privacy.dimensions=64"])
    assert str(error.value) == "privacy.dimensions=64: must be below model.projector_dim=64"


def test_a_path_may_start_at_home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    assert load_config(["data=cifar10", "data.root=~/photos/a"]).data.settings.root == (
        "/home/ada/photos/a"
    )


def test_frozen():
    config = load_config()
    with pytest.raises(ValidationError):
        config.seed = 3


@pytest.mark.parametrize("root", ["/mnt/x y", "/mnt/ü", os.fsdecode(b"/mnt/caf\xe9")])
def test_survives_the_journey_to_a_client(root):
    config = load_config(["data=cifar100", "seed=3", f"data.root={root}"])
    text = config.to_json()
    assert Config.from_json(text.encode().decode()) == config


def test_a_total_budget_below_one_release_is_refused():
    private = ["clustering=private", "privacy.epsilon=2"]
    assert load_config([*private, "privacy.total_epsilon=2"]).privacy.total_epsilon == 2
    with pytest.raises(ConfigError) as error:
        load_config([*private, "privacy.total_epsilon=1"])
    assert str(error.value) == "privacy.total_epsilon=1: must be at least privacy.epsilon=2"


@pytest.mark.parametrize(
    "private",
    [
        ["clustering=private", "privacy.epsilon=2"],
        ["method=simclr", "federation.weighting=uniform", "privacy.clip=1",
         "privacy.noise_multiplier=1", "federation.clients=5"],
    ],
)  # fmt: skip
def test_scores_without_noise_are_refused_beside_differential_privacy(private):
    assert load_config(private).evaluation.unsupervised is False
    with pytest.raises(ConfigError, match="^evaluation.unsupervised=true: .* must be false with"):
        load_config([*private, "evaluation.unsupervised=true"])
