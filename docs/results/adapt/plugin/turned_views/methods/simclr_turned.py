"""SimCLR with views that are turned by a random number of quarter turns."""

from dataclasses import replace

from orchestra_flwr.methods.simclr import SimCLR


class SimclrTurned(SimCLR):
    """Features of an image do not depend on how it was turned."""

    class Settings(SimCLR.Settings):
        """Options under `method.`; those of SimCLR."""

    def recipes(self):
        """SimCLR's views, each turned."""
        return tuple(replace(recipe, rotate=True) for recipe in super().recipes())
