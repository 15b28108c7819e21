"""A watched process at its address: the page, `/status` and `/metrics`."""

import base64
import hashlib
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import yaml
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from orchestra_flwr.deployment.addresses import WatchConfig
from orchestra_flwr.deployment.client_work.client_worker import ClientWorker
from orchestra_flwr.deployment.watch.client_status import DOING, ClientStatus
from orchestra_flwr.deployment.watch.figures import figures
from orchestra_flwr.deployment.watch.watched import PAGE, watched
from orchestra_flwr.federation.messages.failures import Failure

DEPLOY = Path(__file__).parents[3] / "deploy"


@pytest.fixture
def client():
    """A client that trained in a round and failed in the next."""
    problem = []
    status = ClientStatus(
        "a",
        "host:1",
        20,
        connected=lambda: True,
        problem=lambda: problem[0] if problem else None,
        certificates=(),
    )
    config = ConfigRecord({"config": json.dumps({"federation": {"rounds": 9}}), "round": 4})
    array = Array("uint8", (6,), "numpy.ndarray", b"abcdef")
    model = ArrayRecord({"model": array})
    asked = SimpleNamespace(kind="train", content=RecordDict({"config": config, "state": model}))
    status.asked(asked)
    assert status.state == "training"
    metrics = MetricRecord({"loss/contrast": 2.5, "seconds": 1.5, "steps": 3})
    status.answered("train", RecordDict({"metrics": metrics, "state": model}))
    status.asked(asked)
    status.answered("train", Failure.OUT_OF_MEMORY)
    problem.append("out of memory: 4 GB")
    return status


def test_a_client_shows_what_it_did(client, by_name):
    shown = client.to_dict()
    assert (shown["state"], shown["round"], shown["rounds"]) == ("connected", 4, 9)
    assert shown["problem"] == "out of memory: 4 GB"
    assert shown["answers"] == {"training ok": 1, "training out_of_memory": 1}
    assert shown["bytes"] == {"up": 6, "down": 12}
    assert shown["curves"] == {"loss": [(4, 2.5)]}
    figures = by_name(client)
    assert figures["well",] == 0 and figures["connected",] == 1
    assert figures["loss", "contrast"] == 2.5 and figures["round_seconds",] == 1.5


def test_a_client_that_takes_no_part_says_why_in_the_words_word(client):
    """It had counted as an answer that was good."""
    query = SimpleNamespace(kind="query", content=RecordDict())
    client.asked(query)
    client.answered("query", RecordDict({"config": ConfigRecord({"refusal": "too_few_images"})}))
    shown = client.to_dict()
    assert (shown["state"], shown["refused"]) == ("refused", "too_few_images")
    assert shown["answers"]["joining too_few_images"] == 1 and "joining ok" not in shown["answers"]
    client.asked(query)
    client.answered("query", RecordDict({"config": ConfigRecord({"client": "a"})}))
    assert (client.to_dict()["state"], client.to_dict()["refused"]) == ("connected", None)


def test_a_client_shows_no_round_beyond_the_last(client):
    for number, shown in ((12, 9), (-3, 0)):
        config = {"config": json.dumps({"federation": {"rounds": 9}}), "round": number}
        content = RecordDict({"config": ConfigRecord(config)})
        client.asked(SimpleNamespace(kind="train", content=content))
        assert client.to_dict()["round"] == shown


def test_a_client_that_the_next_run_greets_has_trained_no_round_of_it(client):
    config = ConfigRecord({"config": json.dumps({"federation": {"rounds": 2}})})
    client.asked(SimpleNamespace(kind="query", content=RecordDict({"config": config})))
    assert (client.to_dict()["round"], client.to_dict()["rounds"]) == (0, 2)


def test_a_servers_nonsense_ends_no_client(client, by_name):
    texts = ("[" * 5000, "{}", "3", "[3]", '{"federation": {"rounds": 1e999}}', "\ud800")
    for values in ({}, *({"config": text, "round": "x"} for text in texts)):
        content = RecordDict({"config": ConfigRecord(values)})
        client.asked(SimpleNamespace(kind="query", content=content))
    assert client.to_dict()["round"] == 4
    many = {"config": '{"federation": {"rounds": 1' + 400 * "0" + "}}", "round": 5}
    content = RecordDict({"config": ConfigRecord(many)})
    client.asked(SimpleNamespace(kind="query", content=content))
    assert by_name(client)["rounds",] < 1e12


@pytest.fixture
def address(everything):
    lines = []
    with watched(WatchConfig(port=0), everything.status.to_dict, lines.append):
        (address,) = re.findall("http://127.0.0.1:[0-9]+/", lines[0])
        yield address


def get(address):
    return httpx.get(address, trust_env=False)


def test_nothing_listens_unless_it_is_asked_for(everything):
    lines = []
    with watched(WatchConfig(), everything.status.to_dict, lines.append):
        assert lines == []


def test_the_status_is_json(address, everything):
    shown = get(f"{address}status").json()
    assert (
        shown["role"] == "server" and shown["round"] == 2 and shown["epsilon"] == {"centroids": 1.5}
    )


def test_prometheus_reads_its_metrics(address, everything):
    parser = pytest.importorskip("prometheus_client.parser")
    families = {
        f.name: f for f in parser.text_string_to_metric_families(get(f"{address}metrics").text)
    }
    assert families["orchestra_bytes"].type == "counter"
    samples = {(s.name, *s.labels.values()): s.value for f in families.values() for s in f.samples}
    assert samples == {
        (f"orchestra_{name}", *labels): value
        for (name, *labels), value in everything.figures().items()
        if value is not None
    } | {key: value for key, value in samples.items() if key[0] == "orchestra_certificate_days"}


def test_without_the_library_a_line_says_what_to_install(address, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    answer = get(f"{address}metrics")
    assert answer.status_code == 501 and answer.text.count("\n") == 1
    assert "pip install 'orchestra-flwr[watch]'" in answer.text
    assert get(f"{address}status").status_code == 200


class TestPage:
    def test_nothing_runs_or_loads_but_what_is_in_it(self, address):
        answer = get(address)
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy
        for tag in ("script", "style"):
            (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", answer.text, re.DOTALL)
            digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
            assert f"{tag}-src 'sha256-{digest}'" in policy
        assert set(re.findall("https?://[^\"' ]+", answer.text)) == {"http://www.w3.org/2000/svg"}
        assert "innerHTML" not in answer.text and " style=" not in answer.text

    def test_it_reads_what_a_status_holds(self, everything, client):
        """A key that no status has would leave a field empty for ever."""
        server, client_status = everything.status.to_dict(), client.to_dict()
        read = set(re.findall(r"\bnow\.([a-z_]+)", PAGE.read_text()))
        assert read <= server.keys() | client_status.keys() and len(read) > 15
        assert {"loss", "label_free", "knn", "linear", "map"} >= server["curves"].keys()


def test_dashboard_and_alerts_ask_for_figures_that_there_are(everything, client):
    there = {}  # by name: label and its values
    for status in (client, everything.status):
        for name, label, _, values in figures(status.to_dict()):
            there.setdefault(f"orchestra_{name}", (label, set()))[1].update(values)
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"][0]["rules"]
    assert all(rule["annotations"]["summary"] and rule["labels"]["severity"] for rule in rules)
    guide = (DEPLOY.parent / "docs" / "operate.md").read_text()
    assert all(f"| `{rule['alert']}` |" in guide for rule in rules)
    assert all(f"`{name.removeprefix('orchestra_')}`" in guide for name in there)
    # A queue that waits for a run makes no progress, and need not.
    (progress,) = (rule["expr"] for rule in rules if rule["alert"] == "OrchestraNoProgress")
    assert progress.endswith('unless on (instance) orchestra_state{state="idle"} == 1')
    asked = " ".join([*panels, *(rule["expr"] for rule in rules)])
    names = set(re.findall(r"\borchestra_[a-z_]+", asked))
    assert names <= there.keys() and len(names) > 12
    for name, inside in re.findall(r"(orchestra_[a-z_]+)\{(.*?)\}", asked):
        for label, value in re.findall(r'([a-z]+)="(.*?)"', inside):
            known, values = there[name]
            assert (label, value) == ("instance", "$server") or (
                label == known and value in values
            ), (name, inside)


@pytest.mark.parametrize(
    ("mean", "now", "rises"),
    [
        (2.0, 2.9, False),
        (2.0, 3.1, True),
        (-0.9, -0.95, False),
        (-0.9, -0.5, False),
        (-0.9, 0, True),
    ],
)
def test_only_a_loss_that_rises_is_an_alarm(mean, now, rises):
    """That of byol, simsiam, spectral or specloss is negative: the alarm never ended."""
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"][0]["rules"]
    (rule,) = (rule["expr"] for rule in rules if rule["alert"] == "OrchestraLossRises")
    loss = 'orchestra_loss{part="total"}'
    rule = rule.replace(f"avg_over_time({loss}[1d])", f"({mean})").replace(loss, f"({now})")
    assert re.fullmatch(r"[-+*<>().0-9 abs]+", rule)
    assert eval(rule) is rises  # noqa: S307 (a rule of ours)


def test_a_client_says_what_it_does_with_every_kind_of_message():
    assert DOING.keys() == ClientWorker.KINDS.keys()
