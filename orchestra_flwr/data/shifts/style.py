"""Images in styles that differ from client to client: filters, or a user's stylised copies."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import conv2d, pad

from orchestra_flwr.config import ConfigError, Section
from orchestra_flwr.console.printable import printable
from orchestra_flwr.data.colours import LUMA
from orchestra_flwr.data.image_files.archive import Archive, ImageFile
from orchestra_flwr.data.image_files.decoded_cache import cache_dir, cache_key, cached
from orchestra_flwr.data.image_files.decoding import decode_files
from orchestra_flwr.data.images import Dataset, ImageSet
from orchestra_flwr.data.shifts import Shift, drawn_variants
from orchestra_flwr.data.transforms import blur
from orchestra_flwr.files import at_home
from orchestra_flwr.seeding import torch_generator

LEVELS = 4  # of a posterised channel
SATURATION = 2.0
RELIEF = ((-2.0, -1.0, 0.0), (-1.0, 1.0, 1.0), (0.0, 1.0, 2.0))
WARM, COLD = (1.15, 1.0, 0.75), (0.75, 1.0, 1.15)  # factors of red, green and blue
BLUR_SIGMA = 2.0
NOISE = 0.08  # deviation, of values from 0 to 1


class Style(Shift):
    """Each image has one of its client's few styles, the same in every round.

    A client draws its shares of the styles from Dirichlet(alpha / styles). The five filters (as it
    is, posterised, relief, blurred and warm, noisy and cold) are substitutes for the stylised
    images of Dec-SSL (https://arxiv.org/abs/2210.10947), whose paintings and weights are not
    public. With `folder` they are whatever its folders hold.
    """

    class Settings(Section):
        alpha: float = Field(0.1, gt=0)  # of a client's shares of styles: the smaller, the fewer
        # <style>/<number>.png, copies of the training images; None: filters
        folder: str | None = None

    @classmethod
    def check(cls, config: Any) -> None:
        """Refuses gray images."""
        if config.data.channels != len(LUMA):
            raise ValueError(
                f"shift=style: needs images of 3 channels; those of data={config.data.name} "
                f"have {config.data.channels}"
            )

    def check_images(self, images: ImageSet) -> None:
        """Every style must have a copy of every training image, and no more.

        With more, as with `data.train_limit`, an image would get the copy of another.
        """
        if self.settings.folder is None:
            return
        copies = read_copies(self.settings.folder, images.images.shape[-1])
        if copies.shape[1] != len(images):
            raise ConfigError(
                f"shift.folder={self.settings.folder}: must hold a copy of each of the "
                f"{len(images)} training images and of no others, numbered from 0, in each style; "
                f"there are {copies.shape[1]}"
            )

    def apply(self, images: Tensor, indices: Tensor, client: str, seed: int) -> Tensor:
        """The images in their styles; with `folder` they are those of :meth:`check_images`."""
        if self.settings.folder is not None:
            copies = read_copies(self.settings.folder, images.shape[-1])
            chosen = drawn_variants(len(copies), self.settings.alpha, indices, client, seed)
            return copies[chosen, indices.cpu()].to(images.device)
        chosen = drawn_variants(len(FILTERS), self.settings.alpha, indices, client, seed)
        styled = images.clone()
        for style, filter_ in enumerate(FILTERS[1:], 1):
            rows = (chosen == style).nonzero().squeeze(1).to(images.device)
            if len(rows):
                values = filter_(images[rows].float() / 255, indices[rows.cpu()], seed)
                styled[rows] = (values * 255).round().clamp(0, 255).byte()
        return styled


def _as_it_is(values: Tensor, indices: Tensor, seed: int) -> Tensor:
    return values


def _posterised(values: Tensor, indices: Tensor, seed: int) -> Tensor:
    """Few levels and strong colours."""
    gray = _gray(values)
    strong = (gray + SATURATION * (values - gray)).clamp(0, 1)
    return (strong * (LEVELS - 1)).round() / (LEVELS - 1)


def _relief(values: Tensor, indices: Tensor, seed: int) -> Tensor:
    """As if embossed, with light and dark edges."""
    kernel = torch.tensor(RELIEF, device=values.device).expand(3, 1, 3, 3)
    return conv2d(pad(values, (1, 1, 1, 1), mode="replicate"), kernel, groups=3).clamp(0, 1)


def _warm(values: Tensor, indices: Tensor, seed: int) -> Tensor:
    """Blurred, and lit by a lamp."""
    sigma = torch.full((len(values),), BLUR_SIGMA, device=values.device)
    return _tinted(blur(blur(values, sigma), sigma), WARM)


def _cold(values: Tensor, indices: Tensor, seed: int) -> Tensor:
    """Noisy, and bluish; each image has noise of its own."""
    shape = values.shape[1:]
    noise = [
        torch.randn(shape, generator=torch_generator(seed, "shift", index, "noise"))
        for index in indices.tolist()
    ]
    return _tinted(values + NOISE * torch.stack(noise).to(values.device), COLD)


FILTERS: tuple[Callable[[Tensor, Tensor, int], Tensor], ...] = (
    _as_it_is,
    _posterised,
    _relief,
    _warm,
    _cold,
)


def _gray(values: Tensor) -> Tensor:
    luma = torch.tensor(LUMA, device=values.device)[:, None, None]
    return (values * luma).sum(dim=1, keepdim=True)


def _tinted(values: Tensor, factors: tuple[float, ...]) -> Tensor:
    return values * torch.tensor(factors, device=values.device)[:, None, None]


@lru_cache(maxsize=1)
def read_copies(folder: str, size: int) -> Tensor:
    """All copies, decoded once and stored in the user's cache folder.

    Returns:
        uint8, (styles, copies, 3, size, size).

    Raises:
        ConfigError: there are none, they are not named and numbered as they should be, or one
            cannot be read.
    """
    with Archive(at_home(folder), "shift.folder") as archive:
        files, styles = _numbered(folder, archive.files())
        key = cache_key(size, archive.identity(files))

        def decode() -> Dataset:
            decoded = decode_files([file.name for file in files], archive.read, size)
            if decoded.broken:
                raise ConfigError(f"shift.folder={folder}: {': '.join(decoded.broken[0])}")
            return Dataset("styles", ImageSet(decoded.images))

        images = cached(cache_dir(None), "styles", key, decode).train.images
    return images.view(styles, -1, *images.shape[1:])


def _numbered(folder: str, files: Sequence[ImageFile]) -> tuple[list[ImageFile], int]:
    """The files by style and number, and how many styles there are."""
    placed: dict[tuple[str, int], ImageFile] = {}
    for file in files:
        style, stem = file.parts[:-1], Path(file.name).stem
        if not style or not stem.isdecimal():
            raise _wrong_copies(folder, f"not {printable(file.name)}")
        if placed.setdefault(("/".join(style), int(stem)), file) is not file:
            raise _wrong_copies(folder, f"{printable(file.name)} is there twice")
    styles = len({style for style, _ in placed})
    numbers = range(len(placed) // max(1, styles))
    if not placed or any((style, n) not in placed for style, _ in placed for n in numbers):
        raise _wrong_copies(folder, "the same numbers in each style, from 0 without gaps")
    return [placed[key] for key in sorted(placed)], styles


def _wrong_copies(folder: str, what: str) -> ConfigError:
    return ConfigError(
        f"shift.folder={folder}: must hold <style>/<number>.png, copies of the training images; "
        f"{what}"
    )
