"""The card says what the run folder knows, in the form that the hub reads, and nothing private."""

import json

import pytest
import yaml

from orchestra_flwr.config import config_to_yaml, load, load_config
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.export.card_facts import CardFacts
from orchestra_flwr.export.model_card import card
from orchestra_flwr.models import load_encoder, save_encoder

SECTIONS = ("Use", "Method", "Data", "Accuracy", "Privacy")
SUMMARY = {
    "knn": 0.368,
    "linear": 0.495,
    "untrained": {"knn": 0.319, "linear": 0.406},
    "backbone": "target",
    "k_anonymity": 16,
    "released": "centroids",
    "privacy": {"updates": "not covered by differential privacy"},
    "versions": {"orchestra_flwr": "0.1.0", "torch": "2.15.0"},
}


@pytest.fixture
def finished(make_run):
    run = make_run()
    (run / "summary.json").write_text(json.dumps(SUMMARY))
    return run


def text_of(run):
    return card(CardFacts.of(run / "encoder.safetensors"))


def front_matter(text):
    _, front, body = text.split("---\n", 2)
    return yaml.safe_load(front), body


def test_the_front_matter_is_what_the_hub_shows(finished):
    front, body = front_matter(
        card(CardFacts.of(finished / "encoder.safetensors"), "me/digits", "apache-2.0")
    )
    assert front["license"] == "apache-2.0"
    assert front["pipeline_tag"] == "image-feature-extraction"
    assert {"federated-learning", "self-supervised-learning"} <= {*front["tags"]}
    (model,) = front["model-index"]
    assert model["name"] == "digits"
    assert [m["value"] for m in model["results"][0]["metrics"]] == [36.8, 49.5]
    assert body.lstrip().startswith("# digits\n")
    assert 'load_encoder(snapshot_download("me/digits"))' in body


def test_a_run_with_the_name_of_a_section_loses_none(finished):
    lines = card(CardFacts.of(finished / "encoder.safetensors"), "me/Data").splitlines()
    titles = [line for line in lines if line.startswith("#")]
    assert titles == ["# Data", *(f"## {title}" for title in SECTIONS)]


def test_the_hubs_own_library_reads_it(finished):
    hub = pytest.importorskip("huggingface_hub", reason="needs the extra huggingface")
    read = hub.ModelCard(text_of(finished))
    assert [r.metric_name for r in read.data.eval_results] == [
        "kNN accuracy",
        "linear probe accuracy",
    ]
    assert read.data.library_name == "orchestra_flwr"


def test_method_data_accuracy_and_privacy_are_said(finished):
    text = text_of(finished)
    assert "Lubana et al." in text  # the method's own source
    assert "4 simulated clients" in text and "one machine held all images" in text
    assert "| kNN, target" in text and "36.8 %" in text and "+4.9" in text
    assert "stand for 16 different images or more" in text
    assert "averaged encoders: not covered by differential privacy" in text
    assert "(B, 1, 8, 8)" in text


def test_real_clients_are_not_called_simulated(finished):
    server = config_to_yaml(load(ServerConfig, ["host=0.0.0.0", "method=orchestra"]))
    (finished / "config.yaml").write_text(server)
    text = text_of(finished)
    assert "spread over clients on machines of their own" in text
    assert "Only the clients' owners know" in text
    assert "simulated" not in text and "partition" not in text


def test_labels_of_a_part_are_not_denied(finished, tiny):
    shown = tiny("method=simclr", "labels.fraction=0.1")
    (finished / "config.yaml").write_text(config_to_yaml(shown))
    assert "Labels were used for training." in text_of(finished)


def test_no_path_of_the_owners_is_in_it(finished, tiny):
    config = tiny("data=image_folder", "data.root=/home/ann/secret/photos.zip")
    (finished / "config.yaml").write_text(config_to_yaml(config))
    text = text_of(finished)
    assert "image_folder-photos" in text
    assert "/home" not in text and "secret" not in text and str(finished) not in text


def test_what_is_not_private_is_said_first(finished):
    (finished / "summary.json").write_text(json.dumps({**SUMMARY, "not_private": "raw features"}))
    assert "## Privacy\n\nNOT PRIVATE: raw features" in text_of(finished)


def test_an_encoder_without_its_run_has_a_card(finished):
    for name in ("config.yaml", "summary.json"):
        (finished / name).unlink()
    front, body = front_matter(text_of(finished))
    assert "model-index" not in front and "license" not in front
    assert "Not measured" in body


def test_labels_are_not_denied(finished, tiny):
    (finished / "config.yaml").write_text(config_to_yaml(tiny("method=supervised")))
    front, body = front_matter(text_of(finished))
    assert "self-supervised-learning" not in front["tags"]
    assert "Labels were used for training." in body and "trained with labels" in body


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("null", "On digits's test images, by frozen features"),
        ("3000", "On at most 3,000 of digits's test images, equally many of each class, by frozen"),
    ],
)
def test_a_card_says_if_not_all_test_images_count(finished, limit, said):
    """Of uneven classes an accuracy on equally many of each is another one."""
    config = load_config(["data=digits", f"evaluation.limit={limit}"])
    (finished / "config.yaml").write_text(config_to_yaml(config))
    assert said in text_of(finished)


@pytest.mark.parametrize(("by", "is_said"), [("linear", True), ("effective_rank", False)])
def test_a_card_says_if_test_images_chose_the_round(finished, by, is_said):
    summary = {**SUMMARY, "kept_round": 2, "kept_by": by}
    (finished / "summary.json").write_text(json.dumps(summary))
    assert ("chose the round" in text_of(finished)) is is_said


def test_one_of_several_encoders_does_not_boast_of_the_runs_scores(finished):
    (finished / "encoders").mkdir()
    for ending in ("safetensors", "json"):
        (finished / f"encoder.{ending}").rename(finished / "encoders" / f"cluster-1.{ending}")
    text = card(CardFacts.of(finished / "encoders" / "cluster-1.safetensors"))
    assert "model-index" not in text and "Not measured" in text
    assert "stand for 16 different images" in text and "Lubana et al." in text


@pytest.mark.parametrize("place", ["", "encoders"], ids=["the run's own", "a cluster's"])
def test_one_of_several_encoders_has_the_scores_of_its_own_model(finished, place):
    """Those of the run are the means over all models, which no encoder has."""
    models = {
        name: {"weight": weight, "scores": {"target": {"knn": knn, "linear": knn + 0.1}}}
        for name, weight, knn in (("cluster-0", 3.0, 0.421), ("cluster-1", 1.0, 0.209))
    }
    summary = {**SUMMARY, "models": models, "model": "cluster-0"}
    (finished / "summary.json").write_text(json.dumps(summary))
    (finished / place).mkdir(exist_ok=True)
    file = finished / place / f"{'cluster-0' if place else 'encoder'}.safetensors"
    encoder = load_encoder(finished)
    about = {"method": "orchestra", "backbone": "target"}
    save_encoder(file, encoder, **about, model="cluster-0")
    front, body = front_matter(card(CardFacts.of(file)))
    assert [m["value"] for m in front["model-index"][0]["results"][0]["metrics"]] == [42.1, 52.1]
    assert "36.8 %" not in body and "+10.2" in body
    save_encoder(finished / "encoder.safetensors", encoder, **about, model="mean")
    front, _ = front_matter(text_of(finished))
    assert front["model-index"][0]["results"][0]["metrics"][0]["value"] == 36.8


def test_the_backbone_is_described_by_what_it_has(make_run, tmp_path):
    pytest.importorskip("timm", reason="needs the extra timm")
    assert "- backbone: `convnet`, width 8, norm batch" in text_of(make_run())
    run = make_run("timm", timm="test_efficientnet", image_size=8)
    assert "- backbone: `timm`, timm test_efficientnet, image_size 8\n" in text_of(run)


def test_networks_that_were_trained_before_are_named_without_their_paths(finished, tiny):
    pytest.importorskip("timm", reason="needs the extra timm")
    assert "trained before" not in text_of(finished)
    for overrides, key in (
        (["init=/home/ann/secret/run"], "init"),
        (
            ["model=timm", "model.timm=test_vit", "model.weights=/ann/a.safetensors"],
            "model.weights",
        ),
        (["method=distill", "method.teacher=/home/ann/secret"], "method.teacher"),
    ):
        (finished / "config.yaml").write_text(config_to_yaml(load_config(overrides)))
        text = text_of(finished)
        assert f"had a part in it ({key}); these may have learned from labels" in text
        assert "/ann" not in text
