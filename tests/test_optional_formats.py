"""HEIC and DICOM: with their libraries as any image, without them one line that says what to do."""

import io
import logging
import re
import sys

import numpy as np
import pytest
from PIL import Image

from orchestra_flwr import optional_formats
from orchestra_flwr import square_image as square_image_module
from orchestra_flwr.config import DataConfig
from orchestra_flwr.data import load_dataset
from orchestra_flwr.data.image_files import archive, decoding
from orchestra_flwr.square_image import decode_image, square_image

HEIC = b"\x00\x00\x00\x18ftypheic" + bytes(200)
DICM = bytes(128) + b"DICM" + bytes(200)


@pytest.fixture
def without_libraries(monkeypatch):
    monkeypatch.setattr(optional_formats, "installed", list)
    suffixes = frozenset(s for group in optional_formats.SUFFIXES.values() for s in group)
    monkeypatch.setattr(archive, "NEED_LIBRARY", suffixes)
    monkeypatch.setattr(archive, "SUFFIXES", archive.SUFFIXES - suffixes)
    monkeypatch.setattr(archive, "UNDECODABLE", archive.UNDECODABLE | suffixes)
    formats = ("JPEG", "PNG", "TGA")
    monkeypatch.setattr("orchestra_flwr.square_image._formats", lambda: formats)


@pytest.mark.parametrize(("content", "name"), [(HEIC, "HEIF"), (DICM, "DICOM")])
def test_without_the_library_a_line_says_what_to_install(
    content, name, tmp_path, caplog, without_libraries
):
    library = optional_formats.LIBRARIES[name]
    says = f"{name}: {library} is not installed; pip install 'orchestra-flwr[formats]'"
    with pytest.raises(ValueError, match=rf"^{re.escape(says)}$"):
        decode_image(content, 16)
    suffix = optional_formats.SUFFIXES[name][0]
    (tmp_path / f"one{suffix}").write_bytes(content)
    Image.new("RGB", (9, 9)).save(tmp_path / "two.png")
    with pytest.raises(ValueError, match=rf"one\{suffix}: {name}: ") as error:
        square_image(tmp_path / f"one{suffix}", 16)
    assert str(error.value).endswith(says)
    data = {"name": "image_folder", "root": str(tmp_path), "cache": str(tmp_path / "cache")}
    with caplog.at_level(logging.WARNING, "orchestra_flwr.data"):
        assert len(load_dataset(DataConfig.model_validate(data)).train) == 1
    assert (
        f"left out 1 photograph, as the format cannot be read ({suffix}): pip install "
        f"'orchestra-flwr[formats]' reads {suffix}; else convert them to JPEG" in caplog.text
    )


@pytest.fixture
def broken_libraries(tmp_path, monkeypatch):
    """Both are found, and their import fails, as where a library of the system is missing."""
    for library in optional_formats.LIBRARIES.values():
        (tmp_path / "libraries" / library).mkdir(parents=True)
        file = tmp_path / "libraries" / library / "__init__.py"
        file.write_text("raise ImportError('libheif.so.1: cannot open\\nshared object file')")
        for name in [n for n in sys.modules if n.partition(".")[0] == library]:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path / "libraries")
    for name in optional_formats.LIBRARIES:
        monkeypatch.delitem(Image.OPEN, name, raising=False)  # registered again by the next image
    caches = (optional_formats.import_error, square_image_module._formats)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.mark.parametrize(("content", "name"), [(HEIC, "HEIF"), (DICM, "DICOM")])
def test_a_broken_library_hinders_its_own_files_alone(
    content, name, tmp_path, caplog, broken_libraries
):
    library, suffix = optional_formats.LIBRARIES[name], optional_formats.SUFFIXES[name][0]
    says = f"{name}: {library} cannot be imported (libheif.so.1: cannot open shared object file)"
    with pytest.raises(ValueError, match=rf"^{re.escape(says)}$"):
        decode_image(content, 16)
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / f"one{suffix}").write_bytes(content)
    for other in ("two.png", "three.tga"):
        Image.new("RGB", (9, 9)).save(photos / other)
    data = {"name": "image_folder", "root": str(photos), "cache": str(tmp_path / "cache")}
    with caplog.at_level(logging.WARNING, "orchestra_flwr.data"):
        assert len(load_dataset(DataConfig.model_validate(data)).train) == 2
    assert f"one{suffix}: {says}" in caplog.text


def test_a_library_that_is_installed_later_is_used(tmp_path, monkeypatch):
    """Phones and chats give photographs the suffix of another format."""
    pillow_heif = pytest.importorskip("pillow_heif", reason="needs the extra formats")
    pillow_heif.register_heif_opener()
    picture = Image.new("RGB", (20, 16))
    picture.save(tmp_path / "one.png")
    picture.save(tmp_path / "two.jpg", format="HEIF")
    data = {"name": "image_folder", "root": str(tmp_path), "image_size": 16}
    config = DataConfig.model_validate({**data, "cache": str(tmp_path / "cache")})
    with monkeypatch.context() as without:
        without.setattr(optional_formats, "installed", list)
        without.setattr("orchestra_flwr.square_image._formats", lambda: ("JPEG", "PNG"))
        for _ in range(2):
            assert len(load_dataset(config).train) == 1
        without.setattr(decoding, "decode_image", None)  # it is not called while nothing changes
        assert len(load_dataset(config).train) == 1
    assert len(load_dataset(config).train) == 2


def test_a_photograph_of_a_phone(tmp_path):
    """Upright: a phone's turn is part of its format."""
    pillow_heif = pytest.importorskip("pillow_heif", reason="needs the extra formats")
    pixels = np.zeros((48, 64, 3), dtype=np.uint8)
    pixels[:, 40:] = (250, 20, 20)
    picture = Image.fromarray(pixels)
    exif = picture.getexif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    pillow_heif.register_heif_opener()
    picture.save(tmp_path / "IMG_1.HEIC", format="HEIF", quality=100, exif=exif.tobytes())
    image = square_image(tmp_path / "IMG_1.HEIC", 16)
    assert image.shape == (3, 16, 16)
    assert image[0, -3:].min() > 200 and image[0, :8].max() < 50  # what was right lies below
    data = {"name": "image_folder", "root": str(tmp_path), "image_size": 16}
    dataset = load_dataset(DataConfig.model_validate({**data, "cache": str(tmp_path / "cache")}))
    assert len(dataset.train) == 1 and dataset.shorter_side == 48


def dicom(pixels, photometric="MONOCHROME2", frames=1, **elements):
    pydicom = pytest.importorskip("pydicom", reason="needs the extra formats")
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    meta = pydicom.dataset.FileMetaDataset()
    meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data = pydicom.Dataset()
    data.file_meta = meta
    data.Rows, data.Columns = pixels.shape[frames > 1 :][:2]
    data.SamplesPerPixel = 3 if photometric == "RGB" else 1
    data.PhotometricInterpretation = photometric
    data.BitsAllocated = data.BitsStored = 8 * pixels.dtype.itemsize
    data.HighBit, data.PixelRepresentation = data.BitsStored - 1, int(pixels.dtype.kind == "i")
    data.PlanarConfiguration = 0
    if frames > 1:
        data.NumberOfFrames = frames
    data.PixelData = pixels.tobytes()
    for name, value in elements.items():
        setattr(data, name, value)
    file = io.BytesIO()
    pydicom.dcmwrite(file, data, enforce_file_format=True)
    return file.getvalue()


SCAN = np.arange(-1000, 1000, 2000 / 1024).reshape(32, 32).astype(np.int16)


def gray(content):
    return decode_image(content, 32)[0].astype(int)


def test_a_scan_of_sixteen_bits_fills_eight(monkeypatch):
    pixels = gray(dicom(SCAN))
    assert (pixels.min(), pixels.max()) == (0, 255) and (np.diff(pixels.ravel()) >= 0).all()
    monkeypatch.setattr(optional_formats, "STRIP_PIXELS", 100)
    assert (gray(dicom(SCAN)) == pixels).all()
    assert np.abs(gray(dicom(SCAN, "MONOCHROME1")) - (255 - pixels)).max() <= 1


def test_the_window_of_the_file_is_shown():
    """In units of the modality: here values times 2, minus 100."""
    content = dicom(
        SCAN, WindowCenter=[40, 600], WindowWidth=[400, 9], RescaleSlope=2, RescaleIntercept=-100
    )
    units = 2 * SCAN.astype(float) - 100
    expected = ((units - (40 - 200)) / 400).clip(0, 1) * 255
    assert np.abs(gray(content) - expected).max() <= 0.5


def test_the_first_of_several_frames_and_colour():
    assert (gray(dicom(np.stack([SCAN, -SCAN]), frames=2)) == gray(dicom(SCAN))).all()
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    assert (decode_image(dicom(pixels, "RGB"), 32) == pixels.transpose(2, 0, 1)).all()
    assert gray(dicom(np.full((32, 32), 7, dtype=np.uint8))).max() == 0  # nothing to scale


def test_a_dangerous_or_broken_file_is_refused(monkeypatch):
    content = dicom(SCAN)
    with monkeypatch.context() as patched:
        patched.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
        with pytest.raises(ValueError, match=r"too many pixels \(32 x 32\)"):
            decode_image(content, 32)
    deflated = content.replace(b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.1.2.1.99")
    with pytest.raises(ValueError, match="deflated DICOM is not read"):
        decode_image(deflated, 32)
    with pytest.raises(ValueError, match="only in gray or RGB"):
        decode_image(dicom(SCAN.astype(np.uint8), "PALETTE COLOR"), 32)
    for length in (140, 300, len(content) - 50):
        with pytest.raises(Exception, match=r"\w"):
            decode_image(content[:length], 32)


@pytest.mark.parametrize("syntax", [
    "1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.5", "1.2.3",
])  # fmt: skip
def test_a_compressed_scan_is_given_to_no_decoder(syntax, tmp_path, monkeypatch):
    """JPEG, JPEG 2000, run lengths and one that nobody knows; the line names the file."""
    pydicom = pytest.importorskip("pydicom", reason="needs the extra formats")
    content = dicom(SCAN)
    read = pydicom.dcmread(io.BytesIO(content))
    read.file_meta.TransferSyntaxUID = pydicom.uid.UID(syntax)
    read.PixelData = pydicom.encaps.encapsulate([read.PixelData])
    read["PixelData"].is_undefined_length = True
    file = tmp_path / "scan.dcm"
    read.save_as(file, implicit_vr=False, little_endian=True)
    monkeypatch.setattr("pydicom.pixels.utils.pixel_array", None)
    with pytest.raises(ValueError, match="scan.dcm: .*DICOM is only read uncompressed") as caught:
        square_image(file, 16)
    assert str(caught.value).endswith("decompress it, for example by gdcmconv --raw")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("elements", [
    {"Rows": 65535, "Columns": 65535}, {"NumberOfFrames": 1000}, {"NumberOfFrames": -1},
])  # fmt: skip
def test_a_scan_that_says_more_pixels_than_it_has_is_not_decoded(elements, monkeypatch):
    content = dicom(SCAN, **elements)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    monkeypatch.setattr("pydicom.pixels.utils.pixel_array", None)
    with pytest.raises(ValueError, match="which it has no room for"):
        decode_image(content, 16)


def test_a_photograph_of_a_phone_is_bounded_before_it_is_decoded(monkeypatch):
    """By the size that it says; what its decoder allocates has limits of the library's own."""
    pillow_heif = pytest.importorskip("pillow_heif", reason="needs the extra formats")
    pillow_heif.register_heif_opener()
    file = io.BytesIO()
    Image.new("RGB", (64, 48)).save(file, format="HEIF")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)
    monkeypatch.setattr("pillow_heif.HeifImageFile.load", None)
    with pytest.raises(ValueError, match=r"too many pixels \(64 x 48\)"):
        decode_image(file.getvalue(), 16)
    assert not pillow_heif.options.DISABLE_SECURITY_LIMITS
