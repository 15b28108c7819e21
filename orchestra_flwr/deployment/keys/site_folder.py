"""What a site needs to become a client: one folder, or a zip of it, that holds no secret."""

import io
import zipfile
from pathlib import Path

from orchestra_flwr import __version__
from orchestra_flwr.config import ConfigError
from orchestra_flwr.deployment.keys.client_keys import check_name
from orchestra_flwr.deployment.keys.key_files import NewFile

SCRIPT = Path(__file__).with_name("start.sh")
CONF = """\
# Settings of this client, one key=value a line; all keys: orchestra-client --help
server={server}
{images}
state=state
security=security
"""
NO_IMAGES = "# data.root=/folder/of/images"
FIRST_DATE = (1980, 1, 1, 0, 0, 0)  # zips have no earlier one; equal folders make equal zips


def site_files(
    place: Path, name: str, *, ca: bytes, server: str, images: str, wheel: Path | None, zipped: bool
) -> list[NewFile]:
    """The files of a site, not yet written.

    Args:
        place: the folder in which the site's own is made, or its zip.
        name: of the site's client.
        ca: the certificate of the server's authority.
        server: HOST:PORT.
        images, wheel, zipped: as of the command.

    Raises:
        ConfigError: the name is not valid, the site is there already, images is not one line, or
            the wheel cannot be read.
    """
    check_name(name)
    if not images.isprintable():
        raise ConfigError(f"images={images!r}: must be the path of a folder or a zip, on one line")
    target = place / (f"{name}.zip" if zipped else name)
    if target.exists():
        raise ConfigError(f"{target} exists already: remove it to make it anew")
    script = SCRIPT.read_text().replace("@NAME@", name).replace("@VERSION@", __version__)
    line = f"data.root={images}" if images else NO_IMAGES
    files = {
        "start.sh": script.encode(),
        "client.conf": CONF.format(server=server, images=line).encode(),
        "security/ca.crt": ca,
    }
    if wheel is not None:
        files[wheel.name] = _bytes_of(wheel)
    if not zipped:
        return [NewFile(target / path, data) for path, data in files.items()]
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as written:
        for path, data in files.items():
            written.writestr(zipfile.ZipInfo(f"{name}/{path}", FIRST_DATE), data)
    return [NewFile(target, archive.getvalue())]


def _bytes_of(wheel: Path) -> bytes:
    if not (wheel.name.startswith(f"orchestra_flwr-{__version__}-") and wheel.suffix == ".whl"):
        raise ConfigError(
            f"wheel={wheel}: must be orchestra_flwr-{__version__}-*.whl, as `pip wheel --no-deps .`"
            " makes it of this version"
        )
    try:
        return wheel.read_bytes()
    except OSError as error:
        raise ConfigError(f"wheel={wheel}: {error.strerror}") from None
