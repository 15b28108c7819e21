"""The system's temporary folder, without which neither PyTorch nor Flower starts."""

import tempfile


class MissingError(OSError):
    """No temporary folder can be written to."""


def check() -> None:
    """Raises a :class:`MissingError`: a later error would say nothing of the cause."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        raise MissingError(
            f"{error.strerror}: the disk is full, or the folders may not be written to; make room, "
            "or set TMPDIR to another folder"
        ) from None
