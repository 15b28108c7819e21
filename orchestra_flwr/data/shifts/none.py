"""Clients' images as the source has them."""

from torch import Tensor

from orchestra_flwr.data.shifts import Shift


class NoShift(Shift):
    """Changes nothing."""

    def apply(self, images: Tensor, indices: Tensor, client: str, seed: int) -> Tensor:
        """The images themselves, not a copy."""
        return images
