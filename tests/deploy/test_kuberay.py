"""`deploy/kuberay.yaml`: its command is one, and head and workers fit together.

No cluster of Kubernetes can be made here; `tests/federation/engines/test_ray_cluster.py` has runs
on two nodes of Ray.
"""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from orchestra_flwr.config import load_config

FILE = Path(__file__).parents[2] / "deploy" / "kuberay.yaml"


@pytest.fixture
def job():
    return yaml.safe_load(FILE.read_text())


def pods(job):
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def test_its_command_is_a_simulation_on_the_cluster_that_it_is_in(job):
    program, *overrides = shlex.split(job["spec"]["entrypoint"])
    assert program == "orchestra-sim"
    config = load_config(overrides, all_read=True)
    assert (config.engine.name, config.engine.settings.address) == ("ray", "auto")
    mounted = {mount["mountPath"] for mount in pods(job)[0]["containers"][0]["volumeMounts"]}
    assert config.data.settings.root in mounted
    assert str(Path(config.run_dir).parent) in mounted


def test_head_and_workers_have_one_image_one_ray_and_the_photographs(job):
    assert len({pod["containers"][0]["image"] for pod in pods(job)}) == 1
    version = job["spec"]["rayClusterSpec"]["rayVersion"]
    assert re.search(rf"FROM rayproject/ray:{re.escape(version)}-py3\d+", FILE.read_text())
    for pod in pods(job):
        (container,) = pod["containers"]
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert "photos" in mounts and mounts == {volume["name"] for volume in pod["volumes"]}
        telemetry = {variable["name"]: variable["value"] for variable in container["env"]}
        assert set(telemetry.values()) == {"0"}
