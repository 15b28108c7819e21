import json

import pytest
import torch

from orchestra_flwr.config import ConfigError, config_to_yaml, described, load, load_config
from orchestra_flwr.deployment.addresses import is_loopback
from orchestra_flwr.deployment.client_config import ClientConfig
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.reporting.folder_record import CHECKPOINT, VALUE, check_folder
from orchestra_flwr.tensor_files import save_tensors
from orchestra_flwr.training import build_learner

SOURCE = """
    from orchestra_flwr.config import Section
    from orchestra_flwr.data import Source

    class Options(Section):
        shelf: str = ""

    class Shelf(Source):
        Settings = Options
        classes = 5

        def load(self):
            raise NotImplementedError
"""
EXCHANGE = """
    from orchestra_flwr.federation.exchanges import Exchange

    class Ring(Exchange):
        deployable = False
"""
SHIFT = """
    from orchestra_flwr.data import Shift

    class Tilt(Shift):
        def apply(self, images, indices, client, seed):
            return images
"""


def client(*overrides):
    return load(ClientConfig, ["server=example.org:8443", "data.root=x", *overrides])


def test_a_server_is_a_run_with_an_address():
    config = load(ServerConfig, ["federation.min_clients=5"])
    assert (config.host, config.port, config.data.name) == ("127.0.0.1", 8443, "image_folder")
    assert config.federation.min_clients == config.federation.clients == 5
    assert not config.has_images
    assert load(ServerConfig, ["data=cifar10"]).has_images


def test_clients_are_told_nothing_of_the_servers_machine(tmp_path):
    secret = str(tmp_path / "secret")
    config = load(
        ServerConfig,
        [f"data.root={secret}", f"data.cache={secret}", f"run_dir={secret}", f"security={secret}"],
    )
    sent = config.for_clients()
    assert secret not in sent.to_json() and "8443" not in sent.to_json()
    assert sent.training == config.training and sent.seed == config.seed


def test_nothing_of_a_users_source_leaves_the_server(user_package):
    """Nor of the simulation's engine and partition: what a server reads from is its own affair."""
    user_package({"sources/shelf.py": SOURCE})
    config = load(
        ServerConfig,
        ["plugins=[my_package]", "data=shelf", "data.shelf=/srv/secret", "data.image_size=24",
         "data.train_limit=7", "engine=ray", "engine.address=secret:6379",
         "partition=groups", "partition.csv=/srv/secret.csv"],
    )  # fmt: skip
    sent = config.for_clients()
    assert "secret" not in sent.to_json()
    assert (sent.data.name, sent.data.image_size, sent.data.options) == ("shelf", 24, {})
    assert sent.plugins == ("my_package",) and sent.data.classes == 5
    assert config.data.settings.shelf == "/srv/secret"


def server_tls(*overrides):
    return load(ServerConfig, overrides).tls


def test_plain_text_is_for_this_machine_or_on_demand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not server_tls()
    assert all(server_tls(f"host={host}") for host in ("0.0.0.0", "10.0.0.5", "example.org"))
    assert not server_tls("host=0.0.0.0", "insecure=true")
    assert client().tls and not client("insecure=true").tls
    assert not client("server=127.0.0.1:1").tls
    (tmp_path / "security").mkdir()
    (tmp_path / "security/server.crt").touch()
    assert server_tls()  # keys that are there are used
    for file in ("ca.crt", "client.key"):  # either: who has one of them wants to use keys
        (tmp_path / "security" / file).touch()
        assert client("server=127.0.0.1:1").tls
        (tmp_path / "security" / file).unlink()


@pytest.mark.parametrize("folder", ["typo", "security", ""])
def test_a_folder_of_keys_that_is_named_is_never_taken_for_plain_text(
    tmp_path, monkeypatch, folder
):
    """It was, on this machine, where nothing was there: a slip of the pen turned TLS off."""
    monkeypatch.chdir(tmp_path)
    assert server_tls(f"security={folder}")
    assert client("server=127.0.0.1:1", f"security={folder}").tls
    assert not server_tls(f"security={folder}", "insecure=true")
    assert not server_tls("security=null")


def test_the_default_in_the_run_folder_of_an_earlier_version_is_no_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("security", "typo"):
        values = {**load(ServerConfig, ["run_dir=run"]).model_dump(), "security": folder}
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.yaml").write_text(config_to_yaml(values))
        assert server_tls(f"resume={folder}") == (folder == "typo")


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False),
     ("::", False), ("localhost.example.org", False), ("10.1.1.1", False)],
)  # fmt: skip
def test_loopback(host, local):
    assert is_loopback(host) is local


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("federation.clients=9", "federation.clients=9: real clients come and go"),
        ("port=70000", "port=70000: input should be less"),
        ("host=", "host=: string should have at least 1"),
        ("federation.min_clients=0", "federation.min_clients=0: input should be greater"),
        ("prot=1", "prot: unknown key (did you mean port?)"),
        ("federation.client=7", "federation.client: unknown key (did you mean federation.min_clie"),
    ],
)
def test_wrong_servers_are_told_in_one_line(override, says):
    with pytest.raises(ConfigError) as error:
        load(ServerConfig, [override])
    assert str(error.value).startswith(says)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["privacy.secure_aggregation=true"], r"^federation\.min_clients=2: must be so many"),
        (["privacy.clip=1", "privacy.noise_multiplier=1", "privacy.delta=0.9"],
         r"below 1 / federation\.min_clients = 0\.5$"),
        (["exchange=clusters", "exchange.clusters=3"], r"needs 3 .*, federation\.min_clients=2$"),
        (["terms.verification.weight=1", "terms.verification.capacity=2",
          "federation.min_clients=3"], r"at least federation\.min_clients=3$"),
        (["aggregation=krum"], r"in a round, federation\.min_clients=2 and federation\.part"),
    ],
)  # fmt: skip
def test_too_few_clients_are_told_by_the_key_that_a_server_has(overrides, says):
    with pytest.raises(ConfigError, match=says):
        load(ServerConfig, ["method=simclr", "federation.weighting=uniform", *overrides])


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ([], "server=null: must be HOST:PORT"),
        (["server=example.org"], "server=example.org: must be HOST:PORT"),
        (["server=example.org:0"], "server=example.org:0: must be HOST:PORT"),
        (["server=::1:8443"], "server=::1:8443: must be [::1]:8443, an IPv6 address"),
        (["server=https://example.org:8443"], "server=https://example.org:8443: must be HOST:PORT"),
        (["server=example.org:8443/"], "server=example.org:8443/: must be HOST:PORT alone"),
        (["server=a,b:8443"], "server=a,b:8443: must be HOST:PORT alone"),
        (["server=fl..example.org:1"], "server=fl..example.org:1: fl..example.org can be no"),
        (["server=example.org:1"], "data.root must name a folder or a zip"),
        (["server=a:1", "data.root=x", "name=../up"], "'../up' is no name of a client: 1 to 64"),
        (["server=a:1", "data.root=x", "device=tpu"], "device=tpu: must be auto, cpu"),
        (["server=a:1", "data.root=x", "training.threads=0"], "training.threads=0: input"),
        (["training.lr=1"], "training.lr: unknown key"),
        (["privacy.k_min=0"], "privacy.k_min=0: input should be greater"),
        (["privacy.epsilon=0"], "privacy.epsilon=0: input should be greater"),
        (["privacy.total_epsilon=-1"], "privacy.total_epsilon=-1: input should be greater"),
        (["privacy.delta=1"], "privacy.delta=1: input should be less"),
    ],
)
def test_wrong_clients_are_told_in_one_line(overrides, says):
    with pytest.raises(ConfigError) as error:
        load(ClientConfig, overrides)
    assert str(error.value).startswith(says)


def test_a_delta_that_protects_no_image_is_refused_where_it_bounds_anything():
    for key in ("epsilon", "total_epsilon"):
        privacy = client(f"privacy.{key}=1", "privacy.delta=0.01").privacy
        privacy.check_images(99)
        with pytest.raises(ConfigError, match=r"^privacy.delta=0.01: must be below 1 / 100"):
            privacy.check_images(100)
    client("privacy.delta=0.01").privacy.check_images(100)


def test_a_server_does_not_ask_real_clients_for_features():
    says = (
        r"^method=orchestra: real clients do not send the features of single images "
        r"\(clustering=features\), only simulated ones do$"
    )
    with pytest.raises(ConfigError, match=says):
        load(ServerConfig, ["clustering=features", "privacy.k_min=1"])


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("exchange=ring", "exchange=ring: real clients cannot take part in it"),
        ("shift=tilt", "shift=tilt: must be none, real clients' images are as they are"),
        ("data=digits", "data=digits: must have images of 3 channels, as real clients' images"),
    ],
)
def test_what_only_a_simulation_can_do_is_refused_in_one_line(user_package, override, says):
    user_package({"exchanges/ring.py": EXCHANGE, "shifts/tilt.py": SHIFT})
    chosen = ["plugins=[my_package]", override]
    load_config(chosen)
    with pytest.raises(ConfigError) as error:
        load(ServerConfig, chosen)
    assert str(error.value).startswith(says) and "\n" not in str(error.value)


@pytest.mark.parametrize("address", ["[::1]:8443", '"[::1]:8443"', "'[::1]:8443'"])
def test_an_ipv6_server(address):
    """As the server prints it, without quotes around what looks like a list."""
    assert client(f"server={address}").host == "::1"


@pytest.mark.parametrize(
    ("variables", "state"),
    [
        ({"XDG_STATE_HOME": "/states", "HOME": "/home/jane"}, "/states/orchestra_flwr"),
        ({"XDG_STATE_HOME": "", "HOME": "/home/jane"}, "/home/jane/.local/state/orchestra_flwr"),
        ({"HOME": "/home/jane"}, "/home/jane/.local/state/orchestra_flwr"),
        ({"HOME": ""}, "./.local/state/orchestra_flwr"),
        ({}, "./.local/state/orchestra_flwr"),
    ],
)
def test_a_clients_state_is_its_users_own(monkeypatch, variables, state):
    """A variable that is empty counts as not set, as the XDG specification says."""
    for name in ("XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert client().state == state
    assert client("state=/elsewhere").state == "/elsewhere"


def test_every_key_is_shown_also_where_some_must_be_given():
    assert "server: null" in described(ClientConfig).every_key()
    assert "min_clients: 2" in described(ServerConfig).every_key()


def test_a_resumed_server_may_listen_elsewhere_but_compute_nothing_else(tmp_path):
    config = load(ServerConfig, ["seed=4", "port=1234"])
    (tmp_path / "config.yaml").write_text(config_to_yaml(config))
    again = load(ServerConfig, [f"resume={tmp_path}", "port=5678"])
    assert (again.port, again.seed) == (5678, 4)
    with pytest.raises(ConfigError, match="keeps its own configuration"):
        load(ServerConfig, [f"resume={tmp_path}", "seed=5"])


def test_a_resumed_server_may_wait_for_fewer_clients(tmp_path):
    before = load(ServerConfig, ["federation.min_clients=5", f"run_dir={tmp_path}"])
    (tmp_path / "config.yaml").write_text(config_to_yaml(before))
    again = load(ServerConfig, [f"resume={tmp_path}", "federation.min_clients=4"])
    assert (again.federation.min_clients, again.federation.clients) == (4, 5)
    record = {"config": before.model_dump(mode="json"), "files": {}}
    (tmp_path / CHECKPOINT).parent.mkdir()
    save_tensors(tmp_path / CHECKPOINT, {"x": torch.zeros(1)}, {VALUE: json.dumps(record)})
    (tmp_path / "config.yaml").write_text(config_to_yaml(again))
    check_folder(tmp_path)
    other = again.model_copy(update={"seed": 9})
    (tmp_path / "config.yaml").write_text(config_to_yaml(other))
    with pytest.raises(ConfigError, match="seed 0 -> 9"):
        check_folder(tmp_path)


def test_a_resumed_server_that_waits_for_others_has_the_same_model(tmp_path):
    """The rows of user verification are as many as the clients that the run began with."""
    tiny = ["model.width=8", "model.projector_dim=16", "terms.verification.hidden=16"]
    before = load(ServerConfig, ["terms.verification.weight=1", *tiny, f"run_dir={tmp_path}"])
    (tmp_path / "config.yaml").write_text(config_to_yaml(before))
    again = load(ServerConfig, [f"resume={tmp_path}", "federation.min_clients=3"])
    sent = [build_learner(config.for_clients(), 3) for config in (before, again)]
    first, second = (Schemas.of(learner, before.for_clients()).fingerprint for learner in sent)
    assert first == second
    assert {name: t.shape for name, t in sent[0].state_dict().items()} == {
        name: t.shape for name, t in sent[1].state_dict().items()
    }


@pytest.mark.parametrize("exchange", ["cycle", "tree", "random"])
def test_a_federation_without_a_server_has_none(exchange):
    with pytest.raises(ConfigError) as error:
        load(ServerConfig, [f"exchange={exchange}", "method=simclr"])
    assert str(error.value) == (
        f"exchange={exchange}: real clients cannot take part in it, only simulated ones can"
    )


def test_real_clients_can_be_in_clusters():
    config = load(ServerConfig, ["exchange=clusters", "method=simclr", "exchange.warm_rounds=2"])
    assert config.for_clients().exchange.build().settings == config.exchange.settings
