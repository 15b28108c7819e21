"""Formats of images that PIL reads with an optional library: HEIC of phones, DICOM of clinics."""

import io
import math
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile

LIBRARIES = {"HEIF": "pillow_heif", "DICOM": "pydicom"}  # by PIL's names of the formats
SUFFIXES = {"HEIF": (".heic", ".heif", ".hif"), "DICOM": (".dcm", ".dicom")}
INSTALL = "pip install 'orchestra-flwr[formats]'"
# Such files are not opened: they would be inflated at once, however large that makes them.
DEFLATED = b"1.2.840.10008.1.2.1.99"
# Transfer syntaxes that store pixels uncompressed. All others need decoders that are written in C
# and that pydicom finds among whatever is installed.
UNCOMPRESSED = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.2")
STRIP_PIXELS = 2**20  # converted at a time


def installed() -> list[str]:
    """The formats whose libraries are here, as far as that is known without importing them."""
    return [name for name, library in LIBRARIES.items() if find_spec(library) is not None]


@cache
def import_error(name: str) -> str | None:
    """Why the installed library of a format cannot be imported; None: it can."""
    try:
        import_module(LIBRARIES[name])
    except Exception as error:  # it may lack a library of the system, or fit no other one's version
        return " ".join(str(error).split()) or type(error).__name__
    return None


def register() -> None:
    """Makes PIL read them, as far as their libraries work."""
    for name in installed():
        if name == "HEIF":
            if import_error(name):
                continue
            from pillow_heif import register_heif_opener

            register_heif_opener(thumbnails=False, depth_images=False, aux_images=False)
        else:
            Image.register_open(name, DicomImage)


def missing_library(data: bytes) -> str | None:
    """What a file needs whose library is missing or broken; None for any other file."""
    if data[128:132] == b"DICM":
        name = "DICOM"
    elif data[4:8] == b"ftyp" and data[8:12] in (b"heic", b"heix", b"mif1", b"heim", b"heis"):
        name = "HEIF"
    else:
        return None
    if name not in installed():
        return f"{name}: {LIBRARIES[name]} is not installed; {INSTALL}"
    reason = import_error(name)
    return reason and f"{name}: {LIBRARIES[name]} cannot be imported ({reason})"


class DicomImage(ImageFile.ImageFile):
    """The first frame of a DICOM file, in gray or colour of 8 bits.

    Gray values are those of the modality, such as Hounsfield units, and are scaled from the file's
    first window or, without one, from their least and largest value. MONOCHROME1 is inverted.
    """

    format = "DICOM"
    format_description = "DICOM"

    def _open(self) -> None:
        assert self.fp is not None
        if self.fp.read(132)[128:] != b"DICM" or import_error("DICOM"):
            raise SyntaxError("no DICOM file, or none that can be read")
        self.fp.seek(0)
        self._content = self.fp.read()
        if DEFLATED in self._content:
            raise ValueError("deflated DICOM is not read")
        from pydicom import dcmread

        header = dcmread(io.BytesIO(self._content), stop_before_pixels=True)
        _check_uncompressed(header, len(self._content))
        channels = int(header.SamplesPerPixel)
        if channels not in (1, 3) or header.PhotometricInterpretation == "PALETTE COLOR":
            raise ValueError("DICOM images are read only in gray or RGB")
        self._size = int(header.Columns), int(header.Rows)
        self._mode = "L" if channels == 1 else "RGB"

    def load(self) -> Any:
        """Decodes the pixels."""
        if self._im is None:
            pixels = _eight_bits(self._content, colour=self._mode == "RGB")
            if pixels.shape[1::-1] != self._size:
                raise ValueError("the pixels do not have the size that the file declares")
            self.load_prepare()
            self.frombytes(pixels.tobytes())
        return super().load()


def _check_uncompressed(header: Any, size: int) -> None:
    """Refuses what a decoder would have to unpack, and more pixels than the file has room for."""
    syntax = header.file_meta.get("TransferSyntaxUID")
    if syntax not in UNCOMPRESSED:
        name = getattr(syntax, "name", "unknown")
        raise ValueError(
            f"DICOM is only read uncompressed, and the transfer syntax of this file is {name}: "
            "decompress it, for example by gdcmconv --raw"
        )
    shape = [int(header.get(key) or 1) for key in ("Rows", "Columns", "NumberOfFrames",
             "SamplesPerPixel", "BitsAllocated")]  # fmt: skip
    if min(shape) < 1 or math.prod(shape) > 8 * size:
        raise ValueError(
            f"the file declares {shape[0]} x {shape[1]} pixels in {shape[2]} frames, which it has "
            "no room for"
        )


def _eight_bits(content: bytes, *, colour: bool) -> NDArray[np.uint8]:
    """(H, W) or (H, W, 3) pixels, converted in strips: float64 takes eight bytes a value."""
    from pydicom import dcmread
    from pydicom.pixels.processing import apply_modality_lut
    from pydicom.pixels.utils import pixel_array

    header = dcmread(io.BytesIO(content))
    pixels: NDArray[Any] = pixel_array(header, index=0)
    if colour and pixels.dtype == np.uint8:
        return pixels
    strips = np.array_split(pixels, 1 + pixels.size // STRIP_PIXELS)

    def values(strip: NDArray[Any]) -> NDArray[np.float64]:
        scaled = strip if colour else apply_modality_lut(strip, header)
        return finite_values(scaled)

    window = _window(header)
    if window is None or colour:
        lows, highs = zip(*((v.min(), v.max()) for v in map(values, strips)), strict=True)
        window = min(lows), max(highs)
    low, high = window
    inverted = header.PhotometricInterpretation == "MONOCHROME1"
    converted = []
    for strip in strips:
        shares = ((values(strip) - low) / max(high - low, 1e-9)).clip(0, 1)
        converted.append((255 * (1 - shares if inverted else shares)).round().astype(np.uint8))
    return np.concatenate(converted)


def finite_values(values: NDArray[Any]) -> NDArray[np.float64]:
    """An image's values in float64; those that are infinite or NaN, which scale nothing, are 0."""
    return np.nan_to_num(np.asarray(values, dtype=np.float64), posinf=0.0, neginf=0.0)


def _window(header: Any) -> tuple[float, float] | None:
    """The values that the file's first window shows as black and as white."""
    center, width = (header.get(key) for key in ("WindowCenter", "WindowWidth"))
    if center is None or width is None:
        return None
    first = [float(v[0] if hasattr(v, "__len__") else v) for v in (center, width)]
    return first[0] - first[1] / 2, first[0] + first[1] / 2
