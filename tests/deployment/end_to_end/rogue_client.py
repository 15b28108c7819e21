"""A client that misbehaves as the environment variable ROGUE says: {"<round>": "<behaviour>"}.

It is the real client but for its training: what an attacker or a broken board would run.
"""

import json
import os
import signal
import sys
import time

import numpy as np
from flwr.app import Array, ConfigRecord

from orchestra_flwr import cli
from orchestra_flwr.deployment.client_work import client_worker
from orchestra_flwr.deployment.processes import client_process
from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG, METRICS

BEHAVIOUR = json.loads(os.environ["ROGUE"])


class Rogue(client_worker.ClientWorker):
    def train(self, content):
        what = BEHAVIOUR.get(str(content.config_records[CONFIG]["round"]), "good")
        print(f"rogue: {what}", flush=True)
        if what == f"die in {content.config_records[CONFIG].get('secure_stage')}":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "hang":
            time.sleep(1000)
        if what == "slow":
            time.sleep(8)
        reply = super().train(content)
        if METRICS not in reply:  # a stage of secure aggregation
            return reply
        arrays = reply.array_records[ARRAYS]
        shared = arrays["shared"].numpy() if "shared" in arrays else None
        metrics = reply.metric_records[METRICS]
        if what == "absurd":
            arrays["shared"] = Array(np.full_like(shared, 1e30))
        if what == "many images":
            metrics["examples"] = 10**8
        if what == "loss":
            metrics.update({name: 3e38 for name in [*metrics] if name.startswith("loss/")})
        if what == "nan":
            arrays["shared"] = Array(np.full_like(shared, np.nan))
        if what == "huge":
            arrays["shared"] = Array(np.tile(shared, 100))
        if what == "garbage":
            arrays["shared"] = Array(
                "float32", shared.shape, "numpy.ndarray", b"PK\x03\x04" + bytes(60)
            )
        if what == "schema":
            reply.config_records[CONFIG] = ConfigRecord({"schema": "another"})
        return reply


client_process.ClientWorker = Rogue
sys.exit(cli.client_main())
