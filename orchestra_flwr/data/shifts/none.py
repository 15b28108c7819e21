"""Clients' images as they come from the source."""

from torch import Tensor

from orchestra_flwr.data.shifts import Shift


class NoShift(Shift):
    """Changes nothing."""

    def apply(self, images: Tensor, indices: Tensor, client: str, seed: int) -> Tensor:
        """The images themselves, not a copy."""
        return images
