"""The input of a saved encoder: checked batches, and batches made from images of any kind."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from orchestra_flwr.console.image_count import image_count, no_progress
from orchestra_flwr.machine_limits import usable_cpus
from orchestra_flwr.square_image import in_range

# Takes the number of images done, and their total (None where it is not known).
Report = Callable[[int, int | None], None]

MAX_THREADS = 8  # more would only wait for Python's lock


def checked_batch(images: Tensor, channels: int, size: int) -> Tensor:
    """A batch as networks take it, (B, channels, size, size): uint8 or float in [0, 1].

    Raises:
        TypeError: this is no tensor of numbers.
        ValueError: the images have another shape, or values out of range.
    """
    if not isinstance(images, Tensor):
        raise TypeError(
            f"the encoder takes a tensor, not {type(images).__name__} "
            "(encoder.encode takes a list of paths, PIL images, arrays or tensors)"
        )
    if images.ndim != 4 or tuple(images.shape[1:]) != (channels, size, size):
        raise ValueError(
            f"the encoder expects images (B, {channels}, {size}, {size}), "
            f"not {tuple(images.shape)}{_hint(tuple(images.shape), channels)}"
        )
    if torch.compiler.is_compiling():
        return images  # values are not known while a graph is made
    return in_range(images)


def _hint(shape: tuple[int, ...], channels: int) -> str:
    if len(shape) == 4 and shape[3] == channels and shape[1] != channels:
        return " (channels come first: images.permute(0, 3, 1, 2))"
    if len(shape) == 3 and shape[0] == channels:
        return " (for one image: image[None])"
    return " (encoder.encode takes images of any size)"


def batches(
    images: Any,
    preprocess: Callable[[Any], Tensor],
    batch_size: int,
    progress: Report | bool | None,
) -> Iterator[Tensor]:
    """Images of any kind, preprocessed and stacked; files are decoded by several threads.

    Args:
        images: an iterable of what `preprocess` takes.
        preprocess: one image to (C, S, S).
        batch_size: images at once, at least 1; the last batch may be smaller.
        progress: as :meth:`Encoder.encode` takes it.

    Raises:
        TypeError: this is no iterable of images.
        ValueError: `batch_size` or the shape is not allowed; or as `preprocess` raises it, and
            the text says which image it is.
    """
    if not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size={batch_size}: must be a whole number, 1 or more")
    images = _listed(images)
    _check_several(images)
    total = len(images) if isinstance(images, Sized) else None
    done, rest = 0, iter(images)
    shown: AbstractContextManager[Report] = (
        image_count(total) if progress is True else nullcontext(progress or no_progress)
    )
    with shown as report, ThreadPoolExecutor(min(MAX_THREADS, usable_cpus())) as pool:
        while chunk := list(itertools.islice(rest, batch_size)):
            are_files = all(isinstance(image, str | Path) for image in chunk)
            made = (pool.map if are_files else map)(preprocess, chunk)
            yield torch.stack(list(_numbered(made, done)))
            done += len(chunk)
            report(done, total)


def _listed(images: Any) -> Any:
    """An array of paths, or of other images as objects, as a list; anything else as it is."""
    if not isinstance(images, np.ndarray) or images.dtype.kind not in "UO":
        return images
    if images.ndim != 1:
        raise ValueError(f"an array of paths must be (N,), not {images.shape}")
    return images.tolist()


def _check_several(images: Any) -> None:
    if isinstance(images, str | Path | Image.Image | bytes) or not isinstance(images, Iterable):
        raise TypeError(
            f"images must be several, such as a list, not {type(images).__name__} "
            "(for one image: [image])"
        )
    # Both are iterables of names: of the columns, and of the images.
    if hasattr(images, "iloc") and getattr(images, "ndim", 1) > 1:
        raise TypeError(
            "images must be one column of a table, such as table['file'], "
            f"not {type(images).__name__}"
        )
    if isinstance(images, Mapping):
        raise TypeError(
            f"images must be several, such as a list, not {type(images).__name__} "
            "(for its values: images.values())"
        )
    if isinstance(images, Tensor | np.ndarray) and images.ndim != 4:
        form, gray = "an array (N, H, W, C)", "[..., None]"
        if isinstance(images, Tensor):
            form, gray = "a tensor (N, C, H, W)", "[:, None]"
        raise ValueError(
            f"images must be {form}, not {tuple(images.shape)} (for one: image[None]; for gray "
            f"ones: images{gray})"
        )


def _numbered(made: Iterable[Tensor], first: int) -> Iterator[Tensor]:
    """The images; errors name the image's position."""
    images = iter(made)
    for number in itertools.count(first):
        try:
            yield next(images)
        except StopIteration:
            return
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"image {number}: {error}") from None
