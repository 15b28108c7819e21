"""The configurations of `orchestra-embed`, `orchestra-label` and `orchestra-compare`."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from orchestra_flwr.config import (
    Composed,
    Device,
    OfSavedEncoder,
    OptionalPathText,
    PathText,
    Section,
    WithPlugins,
    required,
)
from orchestra_flwr.files import at_home, encoder_file

LABELS = "a CSV with the columns path and label, or a folder with a folder of images for each class"

Format = Literal["safetensors", "npz", "parquet"]
Seed = Annotated[int, Field(ge=0, lt=2**32)]  # scikit-learn takes no larger one


class WithImages(Section):
    """Images for an encoder, and where the results go."""

    images: Annotated[PathText, required("images", "a folder or a zip of images")]
    folder: OptionalPathText
    batch_size: int = Field(ge=1)
    device: Device


class UseConfig(WithImages, OfSavedEncoder):
    """A saved encoder, and images for it."""

    format: Format

    @property
    def results(self) -> Path:
        """The folder of the results."""
        if self.folder:
            return at_home(self.folder)
        images = at_home(self.images).resolve()
        return self.beside("embeddings") / (images.name.removesuffix(".zip") or "images")


class PageConfig(Section):
    """The page of the images."""

    write: bool
    pictures: Literal["inside", "beside"]
    limit: int = Field(ge=1, le=50_000)
    clusters: int = Field(ge=1, le=24)
    seed: Seed


class EmbedConfig(UseConfig):
    """`orchestra-embed`."""

    file = "embed"

    page: PageConfig

    def unread(self) -> dict[str, str]:
        """All other keys of the page without one."""
        names = () if self.page.write else (*PageConfig.model_fields,)
        return {f"page.{name}": "with page.write=false" for name in names if name != "write"}


class LabelConfig(UseConfig):
    """`orchestra-label`."""

    file = "label"

    labels: Annotated[PathText, required("labels", LABELS)]
    seed: Seed


class CompareConfig(WithImages, WithPlugins, Composed):
    """`orchestra-compare`."""

    file = "compare"

    after: Annotated[PathText, required("after", "a run folder or an encoder.safetensors")]
    before: OptionalPathText
    before_weights: PathText
    before_size: int | None = Field(ge=8, le=512)
    labels: OptionalPathText
    limit: int = Field(ge=10)
    queries: int = Field(ge=0, le=500)
    seed: Seed

    def unread(self) -> dict[str, str]:
        """Keys of a network of timm, where `before` names none."""
        if self.before is not None and not at_home(self.before).exists():
            return {}
        named = "without before=" if self.before is None else f"with before={self.before}"
        why = f"{named}, only with the name of a network of timm"
        return dict.fromkeys(("before_weights", "before_size"), why)

    @property
    def results(self) -> Path:
        """The folder of the results."""
        if self.folder:
            return at_home(self.folder)
        return encoder_file(self.after).parent / "comparison"
