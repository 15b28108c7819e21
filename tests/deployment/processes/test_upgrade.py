"""What docs/operate.md promises of an upgrade in the middle of a run."""

import json

import pytest
import yaml

from orchestra_flwr.config import load
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.deployment.watch.audit_log import AuditLog, check_audit
from orchestra_flwr.reporting import RunFolder


@pytest.fixture
def of_before(tmp_path):
    """A run folder without what the version before did not know."""
    folder = tmp_path / "run"
    keys = ["model.width=8", "federation.rounds=7", f"run_dir={folder}"]
    with RunFolder.open(load(ServerConfig, keys)):
        pass
    values = yaml.safe_load((folder / "config.yaml").read_text())
    del values["watch"], values["logging"]["format"]
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    return folder


def test_a_run_of_the_version_before_goes_on_and_can_be_watched(of_before):
    keys = [f"resume={of_before}", "watch.port=0", "logging.format=json"]
    config = load(ServerConfig, keys, all_read=True)
    RunFolder.check(config)
    with RunFolder.open(config) as folder:
        log = AuditLog(folder.path, print)
        with log.of_run(config, folder):
            pass
    assert (config.federation.rounds, config.model.width, config.watch.port) == (7, 8, 0)
    events = [json.loads(line)["event"] for line in (of_before / "audit.jsonl").open()]
    assert (events[0], events[-1]) == ("resumed", "ended")
    assert check_audit(of_before)[0] == len(events)
    assert load(ServerConfig, [f"resume={of_before}"]).watch.port is None


def test_what_is_watched_is_no_reason_to_refuse_a_resumed_run(tmp_path):
    with RunFolder.open(load(ServerConfig, ["watch.port=0", f"run_dir={tmp_path / 'run'}"])):
        pass
    resumed = load(ServerConfig, [f"resume={tmp_path / 'run'}", "watch.port=1"])
    assert resumed.watch.port == 1
