"""The model card of an encoder: README.md with the front matter that the Hugging Face hub reads."""

import io
from typing import Any

import yaml
from rich.console import Console

from orchestra_flwr.config import ModelConfig
from orchestra_flwr.console.printable import printable_lines
from orchestra_flwr.export.card_facts import CardFacts
from orchestra_flwr.reporting.summary_table import privacy_lines, scores_table

SCORES = {"knn": "kNN accuracy", "linear": "linear probe accuracy", "map": "mAP"}
CHOICES = ("partition", "training", "optimizer", "federation", "exchange", "server_optimizer")
NUMBERS = {
    "federation": ("clients", "participation"),
    "training": ("local_epochs", "min_steps", "batch_size", "lr"),
}
CHOSEN = (
    "The same images chose the round after which the encoder was kept, so that its accuracies look "
    "better than they are."
)
LOADING = """\
```python
{imports}from orchestra_flwr import load_encoder

encoder = load_encoder({place}{plugins})
features = encoder(images)  # uint8, or float in [0, 1]: (B, {channels}, {size}, {size})
```

The weights are safetensors, nothing is pickled; `encoder.json` says how the network is built.
`onnx/`, if present, holds the same network for other runtimes. The features are meant for
nearest neighbours (by cosine), linear classifiers and clustering."""


def card(facts: CardFacts, repository: str = "", license: str = "") -> str:
    """The text of `README.md`.

    Args:
        facts: what is known of the encoder.
        repository: "owner/name" on the hub, for the lines that load it from there.
        license: its identifier on the hub, such as "apache-2.0"; "": none is named.
    """
    name = repository.rpartition("/")[2] or str(facts.config.get("name") or "encoder")
    front = yaml.safe_dump(_front_matter(name, facts, license), sort_keys=False)
    sections = {
        "Use": _loading(facts, repository),
        "Method": _method(facts),
        "Data": _data(facts),
        "Accuracy": _accuracy(facts),
        "Privacy": _privacy(facts),
    }
    text = "".join(f"\n\n## {title}\n\n{body.strip()}" for title, body in sections.items())
    return printable_lines(f"---\n{front}---\n\n# {name}\n\n{_introduction(facts)}{text}\n")


def _front_matter(name: str, facts: CardFacts, license: str) -> dict[str, Any]:
    tags = ["federated-learning", "flower", facts.about.get("method")]
    if not facts.learns_labels:
        tags.insert(1, "self-supervised-learning")
    front: dict[str, Any] = {"license": license} if license else {}
    front["library_name"] = "orchestra_flwr"
    front["pipeline_tag"] = "image-feature-extraction"
    front["tags"] = [str(tag) for tag in tags if tag]
    metrics = [
        {
            "type": "mAP" if key == "map" else "accuracy",
            "name": title,
            "value": round(100 * facts.summary[key], 2),
        }
        for key, title in SCORES.items()
        if isinstance(facts.summary.get(key), int | float)
    ]
    if metrics:
        result = {
            "task": {"type": "image-classification"},
            "dataset": {"name": facts.data, "type": facts.data, "split": "test"},
            "metrics": metrics,
        }
        front["model-index"] = [{"name": name, "results": [result]}]
    return front


def _introduction(facts: CardFacts) -> str:
    spec, labels = facts.spec, "with" if facts.learns_labels else "without"
    kind = "grey" if spec.channels == 1 else "colour"
    return (
        f"An image encoder: {kind} images of {spec.image_size} x {spec.image_size} pixels to "
        f"feature vectors. It was trained {labels} labels by federated learning on "
        f"{facts.clients}, with [Flower](https://flower.ai) and orchestra_flwr."
    )


def _loading(facts: CardFacts, repository: str) -> str:
    hub = "from huggingface_hub import snapshot_download\n" if repository else ""
    place = f'snapshot_download("{repository}")' if repository else '"the folder of this file"'
    spec = facts.spec
    plugins = f", plugins={[*spec.plugins]}" if spec.plugins else ""
    return LOADING.format(
        imports=hub, place=place, plugins=plugins, channels=spec.channels, size=spec.image_size
    )


def _method(facts: CardFacts) -> str:
    rounds = facts.about.get("rounds")
    lines = [f"- backbone: {_backbone(facts.spec.model)}"]
    if facts.about.get("backbone"):
        lines.append(f"- saved network: {facts.about['backbone']}")
    if rounds is not None:
        lines.append(f"- rounds: {rounds}")
    for section in CHOICES:
        if facts.deployed and section == "partition":  # clients have their own images
            continue
        values = facts.config.get(section) or {}
        if "name" in values:
            lines.append(f"- {section}: `{values['name']}`")
        lines += [
            f"- {section}.{key}: {values[key]}"
            for key in NUMBERS.get(section, ())
            if values.get(key) is not None
        ]
    name = f"`{facts.about['method']}`. " if facts.about.get("method") else ""
    return f"{name}{facts.paper}\n\n" + "\n".join(lines)


def _backbone(model: ModelConfig) -> str:
    """The backbone's name, and the options that decide what it computes."""
    options = model.settings.model_dump(exclude={*model.plugin.first_weights})
    if model.name != "timm":  # whose networks have widths of their own
        options["width"] = model.width
    if model.plugin.obeys_norm:
        options["norm"] = model.norm
    return ", ".join([f"`{model.name}`", *(f"{key} {value}" for key, value in options.items())])


def _data(facts: CardFacts) -> str:
    size = facts.spec.image_size
    used = (
        "Labels were used for training."
        if facts.learns_labels
        else "No label was used for training; labels, if any, only served to measure accuracy."
    )
    if facts.pretrained:
        used += (
            f" Pretrained networks had a part in it ({', '.join(facts.pretrained)}); these may "
            "have learned from labels."
        )
    text = f"`{facts.data}`, scaled to {size} x {size} pixels, spread over {facts.clients}. {used}"
    if not facts.config:
        return text
    if facts.deployed:
        return f"{text} Only the clients' owners know which images they hold."
    return f"{text} The clients were simulated: one machine held all images."


def _accuracy(facts: CardFacts) -> str:
    if not any(key in facts.summary for key in SCORES):
        return "Not measured."
    buffer = io.StringIO()
    Console(file=buffer, width=100).print(
        scores_table(facts.summary.get("untrained") or {}, facts.summary)
    )
    versions = facts.summary.get("versions") or {}
    made = ", ".join(f"{k} {versions[k]}" for k in ("orchestra_flwr", "torch") if versions.get(k))
    chosen = f" {CHOSEN}" if facts.summary.get("kept_by") in SCORES else ""
    return (
        f"On {_test_images(facts)}, by frozen features; `before training` is the same network with "
        f"the weights that the run began with.{chosen}\n\n"
        f"{buffer.getvalue().strip()}\n\nMade with {made or 'unknown'}."
    )


def _test_images(facts: CardFacts) -> str:
    limit = (facts.config.get("evaluation") or {}).get("limit")
    if not limit:
        return f"{facts.data}'s test images"
    chosen = "drawn at random" if "map" in facts.summary else "equally many of each class"
    return f"at most {limit:,} of {facts.data}'s test images, {chosen}"


def _privacy(facts: CardFacts) -> str:
    if facts.summary.get("not_private"):
        return f"NOT PRIVATE: {facts.summary['not_private']}"
    lines = "\n".join(f"- {line}" for line in privacy_lines(facts.summary))
    return (
        "Images stay with the clients; what they send is made from images, and so is this file. "
        "Without differential privacy of the averaged encoders nothing bounds what somebody who "
        f"has the encoder can learn about an image.\n\n{lines or '- nothing was recorded'}"
    )
