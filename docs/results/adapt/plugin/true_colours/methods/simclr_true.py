"""SimCLR with views whose colours stay as they are."""

from dataclasses import replace

from orchestra_flwr.methods.simclr import SimCLR


class SimclrTrue(SimCLR):
    """Views are cropped, flipped and blurred."""

    class Settings(SimCLR.Settings):
        """Options under `method.`; those of SimCLR."""

    def recipes(self):
        """SimCLR's views, without a change of colours."""
        return tuple(replace(recipe, jitter_p=0, gray_p=0) for recipe in super().recipes())
