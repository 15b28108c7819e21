"""Orchestra that leaves the time of its first training step in a file."""

import os
import time
from pathlib import Path

from orchestra_flwr.methods import Batch, Step
from orchestra_flwr.methods.orchestra import Orchestra


class TimedOrchestra(Orchestra):
    """method=timed_orchestra."""

    def loss(self, batch: Batch) -> Step:
        file = Path(os.environ["ORCHESTRA_FIRST_STEP"])
        if not file.exists():
            file.write_text(str(time.time()))
        return super().loss(batch)
