"""One image, from a file or from memory, as networks take it: 8 bits, upright, square, one size.

Training and the saved encoder both use this module, so that an encoder sees images as in training.
"""

import io
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile
from torch import Tensor
from torch.nn.functional import interpolate

from orchestra_flwr import optional_formats

AnyImage: TypeAlias = str | Path | Image.Image | NDArray[np.generic] | Tensor

# The formats that are read, by PIL's names, and the suffixes of their files. Others are refused
# whatever a file is called: PIL gives EPS to Ghostscript, an interpreter of programs. TGA is last,
# for it is recognised by nothing but its first values.
FORMATS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
    "AVIF": (".avif",),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
    "JPEG2000": (".jp2",),
    **optional_formats.SUFFIXES,
    "TGA": (".tga",),
}
MAX_BYTES = 2**28  # of a file; images that PIL allows are hardly ever as large
STRIP_PIXELS = 2**20  # converted at a time
LARGE_PIXELS = 2**24  # an image with more is decoded while no other such image is
_ONE_LARGE_IMAGE = threading.Lock()
JPEG = b"\xff\xd8\xff"  # its first bytes
LUMA = (0.299, 0.587, 0.114)  # red, green and blue in a gray value (ITU-R BT.601)
TURNS = {  # what turns an image upright, by its EXIF orientation
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
ROUNDING = 1e-4  # a float image may leave [0, 1] by this much
IN_RANGE = "must be whole numbers in 0..255 or floating-point numbers in [0, 1]"


def square_image(image: AnyImage, size: int, channels: int = 3) -> Tensor:
    """An image as training reads it.

    Files and PIL images are turned as their EXIF data says; all images are cropped to their middle
    square and resized by PIL, so that a picture has the same pixels in whatever form it is given
    (but for large JPEGs, which are decoded at a fraction of their size). An image that already has
    the right size keeps its values.

    Args:
        image: a file's path; a PIL image; an array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4); or a
            tensor (H, W), (1, H, W), (3, H, W) or (4, H, W). Arrays and tensors hold whole numbers
            in 0..255 or floating-point numbers in [0, 1], which are rounded to 8 bits.
        size: height and width of the result in pixels.
        channels: of the result: 1 or 3.

    Returns:
        uint8, (channels, size, size), on the CPU.

    Raises:
        OSError: the file cannot be read.
        TypeError: the image is of another kind.
        ValueError: the file holds no image, or a shape or value is not allowed.
    """
    if isinstance(image, str | Path):
        square = torch.from_numpy(_read(Path(image), size).copy())
    elif isinstance(image, Image.Image):
        square = torch.from_numpy(_picture(image, size).copy())
    elif isinstance(image, np.ndarray):
        square = _pixels(_channels_first(image), size)
    elif isinstance(image, Tensor):
        square = _pixels(image.detach().cpu(), size)
    else:
        raise TypeError(
            "an image must be a path, a PIL image, a NumPy array or a tensor, "
            f"not {type(image).__name__}"
        )
    return fit_channels(square[None], channels)[0]


def fit_channels(images: Tensor, channels: int) -> Tensor:
    """Colour images as an encoder takes them: gray, (n, 1, S, S), if it takes one channel.

    Args:
        images: (n, 3, S, S) uint8.
        channels: 1 or 3.
    """
    if channels == images.shape[1]:
        return images
    weights = torch.tensor(LUMA).view(1, 3, 1, 1)
    return (images * weights).sum(1, keepdim=True).round_().clamp_(0, 255).byte()


def decode_image(data: bytes, size: int) -> NDArray[np.uint8]:
    """Decodes one image file: turned as its EXIF data says, its middle square, resized.

    Returns:
        uint8, (3, size, size).

    Raises:
        Exception: any error of PIL for a broken file; ValueError for too many pixels.

    It takes up to 8 bytes a pixel (RGBA, or a JPEG to be turned; 3 in 16-bit gray) beside the
    decoder's own memory. Of images over `LARGE_PIXELS` one is decoded at a time.
    """
    with opened_image(data) as image:
        width, height = image.size
        image.draft(None, (2 * size, 2 * size))  # lets a large JPEG be decoded at half, ... size
        # What is decoded counts; but a progressive JPEG takes memory for all of its pixels.
        decoded = width * height if "progressive" in image.info else image.width * image.height
        if Image.MAX_IMAGE_PIXELS and decoded > Image.MAX_IMAGE_PIXELS:
            raise ValueError(f"too many pixels ({width} x {height})")
        with _ONE_LARGE_IMAGE if decoded > LARGE_PIXELS else nullcontext():
            converted, turn = _eight_bits(image), _turn(image)
            if converted is not image:
                image.close()  # frees its pixels
            return _resized(converted, turn, size)


def opened_image(data: bytes) -> Image.Image:
    """An image file in one of `FORMATS`, of which nothing is decoded yet.

    `Image.open` calls a JPEG of 100 or 200 million pixels, as phones make them, an attack.

    Raises:
        UnidentifiedImageError: it has another format.
        ValueError: it has one that needs a library which is not installed, or broken.
    """
    if data.startswith(JPEG):
        with suppress(SyntaxError):  # damaged: the error of Image.open is clearer
            return JpegImageFile(io.BytesIO(data))
    try:
        return Image.open(io.BytesIO(data), formats=_formats())
    except UnidentifiedImageError:
        if needs := optional_formats.missing_library(data):
            raise ValueError(needs) from None
        raise


@lru_cache
def _formats() -> tuple[str, ...]:
    """`FORMATS` as far as this PIL has them: AVIF is new, some need another library."""
    Image.init()
    optional_formats.register()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def check_size(count: int) -> None:
    """Refuses a file of `count` bytes that cannot hold an image.

    Raises:
        ValueError: it is empty, or so large that reading it would be a danger.
    """
    if count == 0:
        raise ValueError("empty file")
    if count > MAX_BYTES:
        raise ValueError(f"too large for an image ({count:,} bytes)")


def broken_because(error: Exception) -> str:
    """Why a file cannot be decoded, in a few words of one line."""
    reason = error.strerror if isinstance(error, OSError) else None  # without the path
    text = " ".join((reason or str(error)).split()) or type(error).__name__
    return "not an image" if text.startswith("cannot identify image file") else text


def in_range(pixels: Tensor) -> Tensor:
    """Values of images of any shape, checked.

    Returns:
        uint8 in 0..255, or floating-point numbers in [0, 1] in their own precision, float32 at
        most.

    Raises:
        TypeError: they are truth values or complex numbers.
        ValueError: a value is out of range.
    """
    if pixels.dtype == torch.uint8:
        return pixels
    if pixels.dtype == torch.bool or pixels.is_complex():
        raise TypeError(f"values of images {IN_RANGE}, not {str(pixels.dtype).split('.')[1]}")
    whole = not pixels.is_floating_point()
    highest, slack = (255, 0.0) if whole else (1, ROUNDING)
    values = pixels if not whole else pixels.to(torch.int64)
    if pixels.numel():
        low, high = map(float, values.detach().aminmax())
        if not (low >= -slack and high <= highest + slack):  # not finite: neither holds
            hint = "" if whole or not 1 < high <= 255 or low < 0 else " (divide them by 255)"
            raise ValueError(f"values of images {IN_RANGE}, not {low:g} to {high:g}{hint}")
    if whole:
        return values.to(torch.uint8)
    return values.float() if values.dtype == torch.float64 else values


def resize(images: Tensor, size: int) -> Tensor:
    """Square images in another size, bicubic with antialiasing: uint8, (N, C, size, size)."""
    if images.shape[-1] == size:
        return images
    resized = images.new_empty(*images.shape[:2], size, size)
    for part, chunk in zip(torch.split(resized, 1024), torch.split(images, 1024), strict=True):
        larger = interpolate(chunk.float(), (size, size), mode="bicubic", antialias=True)
        part.copy_(larger.round_().clamp_(0, 255))
    return resized


def _read(file: Path, size: int) -> NDArray[np.uint8]:
    file = file.expanduser()
    bytes_of_file = file.stat().st_size  # a missing file is named by its own error
    try:
        check_size(bytes_of_file)
        return decode_image(file.read_bytes(), size)
    except OSError as error:
        if error.errno is not None:  # not PIL's: the file cannot be read
            raise
        raise ValueError(f"{file}: {broken_because(error)}") from None
    except Exception as error:  # decoders raise all kinds of errors for broken files
        raise ValueError(f"{file}: {broken_because(error)}") from None


def _picture(image: Image.Image, size: int) -> NDArray[np.uint8]:
    """A PIL image; a JPEG that was opened but not yet decoded is decoded as a file is."""
    if isinstance(image, JpegImageFile) and image.tile and image.fp and image.tell() == 0:
        position = image.fp.tell()
        image.fp.seek(0)
        data = image.fp.read()
        image.fp.seek(position)
        return decode_image(data, size)
    if image.mode == "F" and image.format is None:
        _check_finite(image)
    return _resized(_eight_bits(image), _turn(image), size)


def _check_finite(image: Image.Image) -> None:
    """Refuses NaN and infinity as in an array. In a file they stand for pixels without a value."""
    for box in _strips(image):
        if not np.isfinite(np.asarray(image.crop(box))).all():
            raise ValueError("an image of mode F must hold finite values, not NaN or infinity")


def _turn(image: Image.Image) -> Image.Transpose | None:
    """How to turn a loaded image upright.

    ImageOps.exif_transpose also writes all EXIF data, and fails at a wrong tag. Where the data
    cannot be read at all, nothing is turned.
    """
    with suppress(Exception):  # PIL raises all kinds of errors, as for broken files
        return TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    return None


def _eight_bits(image: Image.Image) -> Image.Image:
    """Loads an image and converts it to L if it is gray, else to RGB.

    Values of more than 8 bits are scaled, since PIL would clip them. This is done in strips: a
    whole image in float64 would take forty bytes a pixel.
    """
    if image.format == "EPS":
        raise ValueError("EPS is not read, because PIL runs Ghostscript on it: convert it to PNG")
    image.load()  # a PNG's EXIF data may come last, and a TIFF is turned as it is loaded
    if image.mode.startswith("I") or image.mode == "F":
        white = max(1.0 if image.mode == "F" else 65535.0, *map(np.max, _values(image)))
        gray = Image.new("L", image.size)
        for (_, first, _, _), values in zip(_strips(image), _values(image), strict=True):
            scaled = values.clip(0) / white * 255
            gray.paste(Image.fromarray(scaled.round().astype(np.uint8)), (0, first))
        return gray
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # PIL warns about a palette with transparency in bytes
    mode = "L" if image.mode in ("1", "L", "LA") else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _strips(image: Image.Image) -> Iterator[tuple[int, int, int, int]]:
    rows = max(1, STRIP_PIXELS // image.width)
    for first in range(0, image.height, rows):
        yield 0, first, image.width, min(first + rows, image.height)


def _values(image: Image.Image) -> Iterator[NDArray[np.float64]]:
    """The values of each strip."""
    for box in _strips(image):
        yield optional_formats.finite_values(np.asarray(image.crop(box)))


def _resized(image: Image.Image, turn: Image.Transpose | None, size: int) -> NDArray[np.uint8]:
    """The middle square of an image in 8 bits, turned upright, (3, size, size)."""
    upright = image if turn is None else image.transpose(turn)
    square = ImageOps.fit(upright, (size, size), Image.Resampling.BICUBIC)
    return np.asarray(square.convert("RGB")).transpose(2, 0, 1)


def _channels_first(array: NDArray[np.generic]) -> Tensor:
    """An array (H, W) or (H, W, C) as a tensor (H, W) or (C, H, W)."""
    first = array.ndim == 3 and array.shape[2] not in (1, 3, 4)
    if array.ndim not in (2, 3) or first or 0 in array.shape:
        hint = "; where channels come first, give torch.from_numpy(array)" if first else ""
        raise ValueError(
            f"an array must be (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), not {array.shape}{hint}"
        )
    if array.ndim == 3:
        array = array.transpose(2, 0, 1)
    if array.dtype.kind not in "uif":
        raise TypeError(f"values of images {IN_RANGE}, not {array.dtype}")
    if array.dtype.itemsize > 8 or not array.dtype.isnative:
        array = array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
    return torch.from_numpy(np.array(array))  # a copy: strides may be negative


def _pixels(pixels: Tensor, size: int) -> Tensor:
    """The middle square of a tensor of values, (3, size, size)."""
    if pixels.ndim == 2:
        pixels = pixels[None]
    if pixels.ndim != 3 or pixels.shape[0] not in (1, 3, 4) or 0 in pixels.shape:
        raise ValueError(
            f"a tensor must be (H, W), (1, H, W), (3, H, W) or (4, H, W), not {tuple(pixels.shape)}"
        )
    pixels = in_range(pixels)
    if pixels.dtype != torch.uint8:
        pixels = (pixels.float() * 255).round_().clamp_(0, 255).byte()
    if len(pixels) == 1:
        picture = Image.fromarray(pixels[0].numpy())
    else:
        picture = Image.fromarray(pixels[:3].permute(1, 2, 0).contiguous().numpy())  # without alpha
    return torch.from_numpy(_resized(picture, None, size).copy())
