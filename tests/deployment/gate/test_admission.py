import resource

import pytest

from orchestra_flwr.deployment.gate.admission import Admission
from orchestra_flwr.deployment.gate.refusals import Refusals


@pytest.mark.parametrize(
    ("limits", "raised"),
    [
        ((1024, 4096), [(4096, 4096)]),
        ((1024, 10_000), [(8704, 10_000)]),  # two for each of 4096 connections, and 512 more
        ((1024, resource.RLIM_INFINITY), [(8704, resource.RLIM_INFINITY)]),
        ((20_000, 20_000), []),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), []),
    ],
)
def test_the_process_may_open_a_file_for_each_connection(monkeypatch, limits, raised):
    calls = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda *arguments: calls.append(arguments))
    Admission(None, Refusals(print), lambda peer, ended: None)
    assert calls == [(resource.RLIMIT_NOFILE, limit) for limit in raised]
