"""TensorBoard: event files in the run folder."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from orchestra_flwr.reporting.trackers import TrackedRun, Tracker


class Tensorboard(Tracker):
    """Writes into `<run folder>/tensorboard`; `tensorboard --logdir outputs` shows all runs."""

    library = "tensorboard"

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.folder / "tensorboard"))
        lines = json.dumps(run.configuration, indent=2).splitlines()
        self._writer.add_text("configuration", "\n".join("    " + line for line in lines))

    def numbers(self, round: int, numbers: Mapping[str, float]) -> None:
        """One scalar each."""
        for path, value in numbers.items():
            self._writer.add_scalar(path, value, round)
        self._writer.flush()

    def picture(self, file: Path, round: int) -> None:
        """As an image summary."""
        with Image.open(file, formats=("PNG",)) as image:
            pixels = np.asarray(image.convert("RGB"))
        self._writer.add_image(file.stem, pixels, round, dataformats="HWC")

    def close(self, completed: bool) -> None:
        """Closes the event file."""
        self._writer.close()
