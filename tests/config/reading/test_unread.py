"""A key that nothing reads is refused where one command gives it; several runs may share others."""

import pytest

from orchestra_flwr.config import ConfigError, load, load_config, without_unread
from orchestra_flwr.deployment.client_config import ClientConfig
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.export.export_config import ExportConfig

PRIVATE = ["clustering=private", "privacy.epsilon=1"]
SIMULATED = "in a simulation, only by a server of real clients"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["method=simclr", "clustering.memory=9"], "clustering.memory: is not read by method=simc"),
        (["method=simclr", "clustering=private"], "clustering: is not read by method=simclr"),
        (["method=simclr", "+clustering.more=9"], "clustering.more: is not read by method=simclr"),
        (["method=byol", "privacy.k_min=5"], "privacy.k_min: is not read by method=byol"),
        (["method=supervised", "model.projector_dim=9"], "model.projector_dim: is not read by met"),
        (["method=semifed", "model.projector_dim=9"], "model.projector_dim: is not read by method"),
        (["privacy.delta=0.01"], "privacy.delta: is not read without privacy.noise_multiplier or"),
        (["terms.verification.hidden=9"], "terms.verification.hidden: is not read with terms.veri"),
        (["federation.min_clients=3"], f"federation.min_clients: is not read {SIMULATED}"),
        (["+federation.min_images=3"], f"federation.min_images: is not read {SIMULATED}"),
        (["merging=fedema", "merging.scale=1", "merging.first_mu=0.5"], "merging.first_mu: is not"),
        (["exchange=clusters", "exchange.start=same", "exchange.warm_rounds=2"],
         "exchange.warm_rounds: is not read with exchange.start=same"),
        (["partition=features", "partition.encoder=x", "partition.beta=1"],
         "partition.beta: is not read with partition.deal=dirichlet"),
        (["partition=groups", "partition.csv=x", "partition.level=2"],
         "partition.level: is not read with partition.csv"),
        (["clustering=features", "privacy.k_min=1", "clustering.local_clusters=3"],
         "clustering.local_clusters: is not read with clustering=features"),
        ([*PRIVATE, "clustering.memory=64"],
         "clustering.memory: is not read with clustering=private"),
        (["method.target=false", "method.ema=0.9"], "method.ema: is not read with method.target="),
        (["method=orchestra_plus", "method.target=false", "method.ema=0.9"],
         "method.ema: is not read with method.target=false"),
        *((["exchange=clusters", "exchange.clusters=1", f"exchange.{given}"],
           f"exchange.{given.partition('=')[0]}: is not read with exchange.clusters=1")
          for given in ("assign=loss", "start=same", "warm_rounds=2")),
        (["terms.verification.weight=1", "terms.verification.images=all"],
         "terms.verification.images: is not read without labels.fraction"),
        (["terms.verification.images=all"], "terms.verification.images: is not read with terms."),
        (["model.groups=3"], "model.groups: is not read with model.norm=batch"),
        (["evaluation.training_images=shifted"],
         "evaluation.training_images: is not read with shift=none, which changes no image"),
        *((["clock=virtual", "clock.devices=x", f"clock.{given}"],
           f"clock.{given.partition('=')[0]}: is not read with clock.devices")
          for given in ("slow=0.1", "images_per_second=50", "hours_away=8")),
    ],
)  # fmt: skip
def test_what_nothing_reads_is_refused(given, says):
    with pytest.raises(ConfigError) as error:
        load_config(given, all_read=True)
    assert str(error.value).startswith(says) and str(error.value).endswith("; leave it out")
    load_config(given)  # which several runs may share


def test_the_width_of_timms_networks_is_their_own():
    pytest.importorskip("timm", reason="needs the extra timm")
    with pytest.raises(ConfigError, match=r"^model\.width: is not read with model=timm"):
        load_config(["model=timm", "model.width=32"], all_read=True)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["calibration=7"], "calibration: is not read without int8=true"),
        (["evaluation.knn_k=3"], "evaluation.knn_k: is not read without int8=true"),
        (["data=cifar10"], "data: is not read without int8=true"),
        (["format=torch_export", "data.root=x"], "data.root: is not read without int8=true"),
        (["license=mit"], "license: is not read without format=hub"),
        (["format=hub", "any_size=false"], "any_size: is not read with format=hub"),
        (["format=detectron2", "tolerance=0.1"], "tolerance: is not read with format=detectron2"),
        (["format=hub", "private=false"], "private: is not read without push_to_hub"),
    ],
)
def test_what_an_export_does_not_read_is_refused(given, says):
    with pytest.raises(ConfigError) as error:
        load(ExportConfig, ["run=x", *given], all_read=True)
    assert str(error.value) == f"{says}; leave it out"


@pytest.mark.parametrize(
    "given",
    [
        ["int8=true", "calibration=7", "evaluation.knn_k=3", "data=cifar10"],
        ["format=hub", "license=mit", "push_to_hub=me/photos", "private=false"],
        ["format=torch_export", "any_size=false", "tolerance=0.1", "folder=x"],
    ],
)
def test_what_an_export_reads_is_not_refused(given):
    load(ExportConfig, ["run=x", *given], all_read=True)


@pytest.mark.parametrize(
    "given",
    [
        ["clustering.memory=64", "privacy.k_min=3"],
        [*PRIVATE, "privacy.delta=0.0001"],
        [*PRIVATE, "privacy.k_min=200"],  # more than clustering.memory
        ["method.target=true", "method.ema=0.9"],
        ["exchange=clusters", "exchange.clusters=1", "exchange.min_members=2", "method=simclr"],
        ["exchange=cycle", "method=simclr", "federation.weighting=uniform"],  # of recorded losses
        ["method=simclr", "labels.fraction=0.1", "terms.verification.weight=1",
         "terms.verification.images=all"],
        ["terms.verification.weight=1", "terms.verification.hidden=9"],
        ["terms.verification.weight=0"],
        ["method=simclr", "preset=released_code"],  # which sets clustering.solver
        ["exchange=clusters", "method=simclr", "exchange.warm_rounds=2"],
        ["partition=groups", "partition.level=2"],
        ["~terms.proximal"],
        ["model.norm=group", "model.groups=2"],
        ["data=cifar10", "shift=rotation", "shift.range=90", "evaluation.training_images=shifted"],
    ],
)  # fmt: skip
def test_what_is_read_is_taken(given):
    assert load_config(given, all_read=True) == load_config(given)


def test_a_server_of_real_clients_reads_other_keys():
    load(ServerConfig, ["federation.min_clients=3", "federation.min_images=3"], all_read=True)
    for given in ("engine=inline", "partition.alpha=3"):
        with pytest.raises(ConfigError, match="is not read with real clients, only simulated"):
            load(ServerConfig, [given], all_read=True)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["watch.host=0.0.0.0"], "watch.host: is not read without watch.port"),
        (["data.limit=9", "data.train_limit=8"], "data.limit: is not read with data.train_limit,"),
        (["method.teacher_size=64"], "method.teacher_size: is not read without method.teacher"),
        (["privacy.delta=1e-5"], "privacy.delta: is not read without a bound on an epsilon"),
    ],
)
def test_what_a_client_does_not_read_is_refused(given, says):
    client = ["server=a:1", "data.root=x"]
    with pytest.raises(ConfigError, match=f"^{says}"):
        load(ClientConfig, [*client, *given], all_read=True)
    read = ["watch.host=::1", "watch.port=0", "data.limit=9", "method.teacher=x"]
    also = ["method.teacher_size=64", "privacy.epsilon=1", "privacy.delta=1e-5"]
    load(ClientConfig, [*client, *read, *also], all_read=True)


@pytest.mark.parametrize("of", [[], ["queue=runs"]])
def test_a_server_that_nobody_can_watch_does_not_take_the_address_for_it(of):
    with pytest.raises(ConfigError, match=r"^watch\.host: is not read without watch\.port"):
        load(ServerConfig, ["watch.host=0.0.0.0", *of], all_read=True)
    load(ServerConfig, ["watch.host=0.0.0.0", "watch.port=0", *of], all_read=True)


def test_a_run_takes_of_shared_overrides_what_it_reads():
    shared = ["clustering.memory=64", "seed=3", "terms.proximal.weight=1", "+privacy.k_min=3"]
    assert without_unread(load_config(["method=simclr"]), shared) == shared[1:3]
    assert without_unread(load_config(), shared) == shared


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("data.root=photos", "have it; did you mean data=image_folder?)"),
        ("rounds=5", "rounds: unknown key (did you mean federation.rounds?)"),
        ("lr=1", "lr: unknown key (did you mean training.lr"),
        ("epochs=1", "epochs: unknown key (did you mean training.local_epochs?)"),
        ("federation.client=7", "unknown key (did you mean federation.clients?)"),  # no server's
        ("data.limit=7", "(did you mean data.train_limit?)"),
        ("hydra.verbose=true", "hydra.verbose: unknown key"),
        ("+hydra.verbose=true", "+hydra.verbose: unknown key"),
        ("+partition.alpha=3", "partition.alpha: unknown option of partition=iid"),
    ],
)
def test_what_may_have_been_meant_is_said(given, says):
    with pytest.raises(ConfigError) as error:
        load_config(["partition=iid", given])
    assert says in str(error.value)
