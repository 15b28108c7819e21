import torch

from orchestra_flwr.merging import ClientState
from orchestra_flwr.merging.replace import Replace


def test_what_was_received_stays_and_nothing_is_kept(toy):
    learner = toy()
    learner.fill(2)
    before = {name: t.clone() for name, t in learner.state_dict().items()}
    merging = Replace(None)
    merging.merge(learner, ClientState({"backbone.0.weight": torch.ones(1, 1, 3, 3)}))
    assert all(torch.equal(t, before[name]) for name, t in learner.state_dict().items())
    assert merging.keep(learner) == ClientState() and merging.metrics() == {}
