import json
from pathlib import Path

import pytest

from orchestra_flwr.config import load_config
from orchestra_flwr.models import Encoder, EncoderSpec, load_encoder, save_encoder
from orchestra_flwr.models.encoder_description import (
    has_frozen_norms,
    read_description,
    write_description,
)


@pytest.fixture
def described(tmp_path):
    """The description of a saved encoder."""
    spec = EncoderSpec.of(load_config(["model.width=8"]))
    save_encoder(tmp_path / "encoder.safetensors", Encoder(spec), rounds=3)
    return tmp_path / "encoder.json"


def test_what_is_written_is_read(described, tmp_path):
    read = read_description(described)
    assert read["about"] == {"rounds": 3}
    write_description(tmp_path / "copy.json", read)
    assert (tmp_path / "copy.json").read_bytes() == described.read_bytes()


def test_a_changed_value_is_noticed_and_another_layout_is_not(described):
    content = json.loads(described.read_text())
    described.write_text(json.dumps(content, indent=7))
    assert read_description(described)["about"] == {"rounds": 3}
    described.write_text(json.dumps({**content, "about": {"rounds": 4}}))
    with pytest.raises(ValueError, match="its checksum is wrong"):
        read_description(described)


@pytest.mark.parametrize("change", [{"spec": []}, {"about": "x"}], ids=str)
def test_one_of_another_shape_is_refused(described, change):
    described.write_text(json.dumps({"spec": {}, **change}))
    with pytest.raises(ValueError, match="it describes no encoder"):
        read_description(described)


def test_one_larger_than_any_is_not_read(described):
    with described.open("ab") as file:
        file.truncate(2**30)
    with pytest.raises(ValueError, match=r"encoder\.json is damaged"):
        read_description(described)


def test_its_model_may_be_a_name(described):
    described.write_text(json.dumps({"spec": {"model": "convnet"}}))
    assert not has_frozen_norms(described.parent)


class KilledError(BaseException):
    """No line of the program is run after it."""


@pytest.mark.parametrize("renames", [1, 2, 3])
def test_whoever_is_killed_while_an_encoder_is_saved_leaves_the_old_one_or_the_new_one(
    described, monkeypatch, renames
):
    """As a server is that resumes a finished run, and writes its encoder anew."""
    before, replace, renamed = load_encoder(described.parent), Path.replace, []
    new = Encoder(before.spec)
    new.load_state_dict({name: 2 * value for name, value in before.state_dict().items()})

    def killing(self, target):
        replace(self, target)
        renamed.append(target)
        if len(renamed) == renames:
            raise KilledError

    monkeypatch.setattr(Path, "replace", killing)
    with pytest.raises(KilledError):
        save_encoder(described.with_name("encoder.safetensors"), new, rounds=4)
    monkeypatch.undo()
    rounds = {1: 3, 2: 4, 3: 4}[renames]
    assert read_description(described)["about"] == {"rounds": rounds}
    (weight, *_), (was, *_) = load_encoder(described.parent).parameters(), before.parameters()
    assert weight.equal(was * (1 if rounds == 3 else 2))
    save_encoder(described.with_name("encoder.safetensors"), new, rounds=4)
    names = ["encoder.json", "encoder.safetensors"]
    assert sorted(file.name for file in described.parent.iterdir()) == names
