"""What a run reports in one process and is shown in another."""

import json
from types import SimpleNamespace

from orchestra_flwr.deployment.channel.progress_events import RelayedProgress, show
from orchestra_flwr.reporting import Progress, RoundOutcome


def test_what_is_relayed_arrives():
    class Shown(Progress):
        asked, evaluated, phases = (), (), ()

        def client_asked(self, client):
            self.asked += (client,)

        def client_came(self, client, good):
            self.came = (client, good)

        def images_evaluated(self, *values):
            self.evaluated += (values,)

        def phase_started(self, text):
            self.phases += (text,)

        def phase_ended(self):
            self.phases += ("",)

    shown = Shown(2)
    channel = SimpleNamespace(send=lambda event: show(json.loads(json.dumps(event)), shown))
    relayed = RelayedProgress(channel, 2)
    relayed.round_started(1, 2, "training")
    relayed.client_asked("a")
    relayed.client_came("b", True)
    relayed.client_done("b", False)
    assert shown.came == ("b", True)
    relayed.images_evaluated("target", 256, 718)
    assert (shown.round, shown.cohort, shown.done, shown.failed) == (1, 2, 1, 1)
    with relayed.phase("saving"):
        assert shown.phases == ("saving",)
    assert shown.phases == ("saving", "")
    relayed.round_finished(RoundOutcome(1, {"total": 2.0}, {"knn": 0.5}, 3.0, ["b: silent"]))
    assert shown.knn == 0.5
    assert (shown.asked, shown.evaluated) == (("a",), (("target", 256, 718),))
