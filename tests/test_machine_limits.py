"""Cores and memory inside and outside containers, from files as Linux has them."""

import os

import pytest

from orchestra_flwr import machine_limits
from orchestra_flwr.machine_limits import usable_cpus, usable_memory

GIB = 2**30


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of 16 cores and 64 GiB, with the files of control groups that are given."""

    def made(membership, files, cores=16):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
        sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 64 * GIB // 4096}
        monkeypatch.setattr(os, "sysconf", sizes.get)
        monkeypatch.setattr(machine_limits, "GROUPS", tmp_path)
        monkeypatch.setattr(machine_limits, "MEMBERSHIP", tmp_path / "membership")
        if membership is not None:
            (tmp_path / "membership").write_text(membership)
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)

    return made


def test_a_machine_without_control_groups_is_used_whole(machine):
    machine(None, {})
    assert (usable_cpus(), usable_memory()) == (16, 64 * GIB)


def test_a_process_may_be_bound_to_some_cores(machine):
    machine("0::/\n", {"cpu.max": "800000 100000\n"}, cores=3)
    assert usable_cpus() == 3


@pytest.mark.parametrize(
    ("quota", "cores"), [("max", 16), ("200000", 2), ("250000", 2), ("50000", 1)]
)
def test_a_container_of_version_2_sees_its_own_group_as_the_outermost(machine, quota, cores):
    machine("0::/\n", {"cpu.max": f"{quota} 100000\n", "memory.max": f"{2 * GIB}\n"})
    assert (usable_cpus(), usable_memory()) == (cores, 2 * GIB)


def test_the_narrowest_group_around_a_process_counts(machine):
    """A service of systemd in a slice, whose name may hold a blank."""
    files = {
        "my.slice/cpu.max": "400000 100000\n",
        "my.slice/memory.max": f"{8 * GIB}\n",
        "my.slice/a b.service/cpu.max": "max 100000\n",
        "my.slice/a b.service/memory.max": "max\n",
    }
    machine("0::/my.slice/a b.service\n", files)
    assert (usable_cpus(), usable_memory()) == (4, 8 * GIB)


def test_a_container_of_version_1_has_a_name_that_only_the_host_knows(machine):
    membership = "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n"
    files = {
        "cpu/cpu.cfs_quota_us": "300000\n",
        "cpu/cpu.cfs_period_us": "100000\n",
        "memory/memory.limit_in_bytes": f"{GIB}\n",
    }
    machine(membership, files)
    assert (usable_cpus(), usable_memory()) == (3, GIB)


def test_version_1_without_limits(machine):
    files = {
        "cpu/cpu.cfs_quota_us": "-1\n",
        "cpu/cpu.cfs_period_us": "100000\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    machine("2:memory:/\n1:cpu:/\n0::/\n", files)
    assert (usable_cpus(), usable_memory()) == (16, 64 * GIB)


def test_this_machine_has_at_most_what_the_system_counts():
    assert 1 <= usable_cpus() <= os.cpu_count()
    assert 0 < usable_memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
