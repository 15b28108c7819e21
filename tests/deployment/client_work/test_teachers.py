"""A real client's teacher: its own command names it, and a server's word for it is not read."""

import pytest
import torch

from orchestra_flwr.config import ConfigError, load
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG, METRICS
from orchestra_flwr.models import Encoder, EncoderSpec, save_encoder


@pytest.fixture
def teacher(configured, tmp_path):
    folder = tmp_path / "teacher"
    folder.mkdir()
    torch.manual_seed(5)
    save_encoder(folder / "encoder.safetensors", Encoder(EncoderSpec.of(configured())))
    return folder


def test_a_client_with_a_teacher_trains(worker, configured, ask, greeting, task, teacher):
    server, one = configured("method=distill"), worker(f"method.teacher={teacher}")
    assert "refusal" not in ask(one, "greet", greeting(server))[CONFIG]
    reply = ask(one, "train", task(server))
    assert set(reply[ARRAYS]) == {"shared"} and reply[METRICS]["loss/similarity"] > 0


@pytest.mark.parametrize("named", ["null", "{teacher}"])
def test_a_client_without_one_refuses_in_a_line(
    worker, configured, ask, greeting, said, teacher, named
):
    """Also where the server names a file that is there."""
    server = configured("method=distill", f"method.teacher={named.format(teacher=teacher)}")
    answer = ask(worker(), "greet", greeting(server))
    assert answer[CONFIG]["refusal"] == "settings_refused"
    line = said[-1]
    assert line.startswith("cannot take part: method.teacher: client kitchen has none")
    assert "\n" not in line


def test_other_methods_do_not_mind(worker, configured, ask, greeting, teacher):
    one = worker(f"method.teacher={teacher}")
    assert "refusal" not in ask(one, "greet", greeting(configured("method=simclr")))[CONFIG]


def test_a_server_that_names_a_teacher_is_told_that_nobody_reads_it(teacher):
    overrides = ["federation.min_clients=2", "method=distill", f"method.teacher={teacher}"]
    with pytest.raises(ConfigError, match="^method.teacher: is not read from a server"):
        load(ServerConfig, overrides, all_read=True)
