"""The picture and the figures of a split in the run folder."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.data import Dataset, ImageSet
from orchestra_flwr.federation.population import Population, load_population
from orchestra_flwr.federation.split_record import check_split, recorded_split
from orchestra_flwr.reporting import RunFolder

pytestmark = pytest.mark.usefixtures("pictures")


def record(config, population, folder):
    with recorded_split(config, population, RunFolder(folder)):
        assert (folder / "partition.json").exists()
    assert (folder / "partition.png").stat().st_size > 1000
    return json.loads((folder / "partition.json").read_text())


def test_counts_and_emd_of_a_split(tiny, tmp_path):
    config = tiny("partition=skew", "partition.beta=0", "federation.clients=5")
    population = load_population(config)
    facts = record(config, population, tmp_path)
    assert facts["partition"] == "skew" and facts["shift"] == "none"
    assert facts["classes"] == [str(label) for label in range(10)]
    assert facts["clients"]["0"] == [12, 12, *[0] * 8]
    assert facts["emd"] == pytest.approx(1.6)
    assert "group_emd" not in facts


def photos(labelled: bool) -> ImageSet:
    files = tuple(f"{folder}/{i}.jpg" for folder in ("mon", "tue") for i in range(4))
    pixels = torch.zeros(8, 3, 8, 8, dtype=torch.uint8)
    labels = torch.arange(8) % 2 if labelled else None
    return ImageSet(pixels, labels, ("cat", "dog") if labelled else (), files)


def test_groups_that_are_no_classes_have_an_emd_of_their_own(tiny, tmp_path):
    config = tiny("partition=groups", "federation.clients=2")
    parts = {"mon": np.arange(4), "tue": np.arange(4, 8)}
    population = Population(Dataset("image_folder", photos(True)), parts)
    facts = record(config, population, tmp_path)
    assert facts["clients"] == {"mon": [2, 2], "tue": [2, 2]}
    assert (facts["emd"], facts["group_emd"]) == (0, 1)


def test_without_labels_there_is_no_emd_of_classes(tiny, tmp_path):
    config = tiny("partition=iid", "federation.clients=2")
    parts = {"0": np.arange(5), "1": np.arange(5, 8)}
    facts = record(config, Population(Dataset("x", photos(False)), parts), tmp_path)
    assert "emd" not in facts
    assert (facts["classes"], facts["clients"]) == (["images"], {"0": [5], "1": [3]})


def test_a_run_that_goes_on_with_as_many_other_images_says_so(tiny, tmp_path, caplog):
    config = tiny("partition=iid", "federation.clients=2")
    parts, images = {"0": np.arange(5), "1": np.arange(5, 8)}, photos(False)
    facts = record(config, Population(Dataset("x", images), parts), tmp_path)
    resumed = config.model_copy(update={"resume": str(tmp_path)})
    check_split(resumed, Population(Dataset("x", photos(False)), parts))
    assert not caplog.records
    others = Dataset("x", replace(images, files=("new.jpg", *images.files[1:])))
    check_split(resumed, Population(others, parts))
    (warning,) = caplog.messages
    assert warning.startswith(f"resume={tmp_path}: files, labels or clients have other names")
    del facts["split"]  # of an earlier version
    (tmp_path / "partition.json").write_text(json.dumps(facts))
    check_split(resumed, Population(others, parts))
    assert caplog.messages == [warning]


def test_a_run_is_resumed_with_its_own_images_alone(tiny, tmp_path):
    config = tiny("partition=iid", "federation.clients=2")
    dataset = Dataset("x", photos(True))
    record(config, Population(dataset, {"0": np.arange(5), "1": np.arange(5, 8)}), tmp_path)
    resumed = config.model_copy(update={"resume": str(tmp_path)})
    same = Population(dataset, {"one": np.arange(5), "two": np.arange(5, 8)})
    check_split(resumed, same)  # clients may have the names of a later version
    fewer = Population(dataset, {"0": np.arange(4), "1": np.arange(5, 8)})
    check_split(config, fewer)
    with pytest.raises(ConfigError, match=r"resume=.*: these are other images .*8 then, 7 now"):
        check_split(resumed, fewer)
    (tmp_path / "partition.json").write_text("")
    check_split(resumed, fewer)
