"""Images that each client sees turned: covariate shift."""

import math
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import grid_sample

from orchestra_flwr.config import Section
from orchestra_flwr.data.shifts import Shift, drawn_variants, uniform

CHUNK = 1024  # images that are turned at once
PADDING = {"black": "zeros", "reflect": "reflection"}  # as grid_sample calls them


class Rotation(Shift):
    """Each image is turned once, by an angle that it keeps, from one of its client's bins.

    A client draws its shares of the bins from Dirichlet(alpha / bins): at ten bins and alpha .1,
    nine of ten clients have one or two. From "A Mutual Information Perspective on Federated
    Contrastive Learning" (https://arxiv.org/abs/2405.02081); `fixed` with 5 bins are the five
    orientations of Dec-SSL (https://arxiv.org/abs/2210.10947).
    """

    class Settings(Section):
        bins: int = Field(10, ge=1)  # equal parts of `range`
        alpha: float = Field(0.1, gt=0)  # of a client's shares of bins: the smaller, the fewer bins
        fixed: bool = False  # a bin stands for its least angle alone, not for any angle in it
        range: float = Field(360.0, gt=0, le=360)  # degrees
        fill: Literal["black", "reflect"] = "black"  # of corners; black ones betray the angle

    @classmethod
    def check(cls, config: Any) -> None:
        """Refuses angles at which images mean something else, such as a 6 that becomes a 9."""
        degrees, limit = config.shift.settings.range, config.data.plugin.max_turn
        if degrees > limit:
            raise ValueError(
                f"shift.range={degrees:g}: must be at most {limit:g} with data="
                f"{config.data.name}, whose images mean something else when turned further"
            )

    def apply(self, images: Tensor, indices: Tensor, client: str, seed: int) -> Tensor:
        """The images turned against the clock, bilinear, by :meth:`angles`."""
        return rotated(images, self.angles(indices, client, seed), self.settings.fill)

    def angles(self, indices: Tensor, client: str, seed: int) -> Tensor:
        """The images' angles in degrees: float64, (n,), on the CPU.

        Args:
            indices: their positions among the training images, int64, (n,).
        """
        bins, width = self.settings.bins, self.settings.range / self.settings.bins
        place = drawn_variants(bins, self.settings.alpha, indices, client, seed).double()
        if not self.settings.fixed:
            place += uniform(indices, seed, "place")
        return place.mul_(width)


def rotated(images: Tensor, degrees: Tensor, fill: str) -> Tensor:
    """Images turned about their middles, against the clock, bilinear.

    Args:
        images: uint8, (n, C, S, S).
        degrees: (n,).
        fill: of pixels from outside of an image: "black" or "reflect".

    Returns:
        uint8, (n, C, S, S).
    """
    size = images.shape[-1]
    line = (2 * torch.arange(size, device=images.device) + 1) / size - 1  # pixels from -1 to 1
    y, x = line[:, None], line[None, :]
    turned = []
    for chunk, angles in zip(torch.split(images, CHUNK), torch.split(degrees, CHUNK), strict=True):
        radians = angles.double() * (math.pi / 180)
        cos, sin = (
            f(radians).float().to(images.device)[:, None, None] for f in (torch.cos, torch.sin)
        )
        # Where each pixel comes from; y points down.
        grid = torch.stack([cos * x - sin * y, sin * x + cos * y], dim=3)
        values = grid_sample(chunk.float(), grid, padding_mode=PADDING[fill], align_corners=False)
        turned.append(values.round_().clamp_(0, 255).byte())
    return torch.cat(turned)
