"""Images through an encoder: the right features in the right order, also after interruptions."""

import zipfile

import pytest
import torch
from PIL import Image

from orchestra_flwr.config import ConfigError, ModelConfig
from orchestra_flwr.data.image_files.decoding import decode_image
from orchestra_flwr.models import Encoder, EncoderSpec, load_encoder
from orchestra_flwr.use import image_embeddings
from orchestra_flwr.use.image_embeddings import embed, opened_images


@pytest.fixture
def parts_of_eight(monkeypatch):
    monkeypatch.setattr(image_embeddings, "PART", 8)


def embedded(run, root, folder):
    with opened_images(str(root), "images") as (archive, files):
        return embed(
            load_encoder(run), archive, files,
            batch_size=5, unfinished=folder / "unfinished", key="k",
        )  # fmt: skip


def test_each_path_has_the_features_of_its_image(run, photos, tmp_path, parts_of_eight):
    embeddings = embedded(run, photos, tmp_path)
    files = sorted(photos.rglob("*.png"))
    assert embeddings.paths == tuple(file.relative_to(photos).as_posix() for file in files)
    images = torch.stack([torch.tensor(decode_image(f.read_bytes(), 16)) for f in files])
    torch.testing.assert_close(embeddings.vectors, load_encoder(run)(images))


def test_a_zip_gives_the_same_as_its_folder(run, photos, tmp_path):
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for file in photos.rglob("*.png"):
            archive.write(file, file.relative_to(photos).as_posix())
    folder, zipped = (
        embedded(run, root, tmp_path / f"of {root.name}")
        for root in (photos, tmp_path / "photos.zip")
    )
    assert folder.paths == zipped.paths and torch.equal(folder.vectors, zipped.vectors)


def test_it_goes_on_where_it_was_interrupted(
    run, photos, tmp_path, parts_of_eight, monkeypatch, capsys
):
    whole = embedded(run, photos, tmp_path / "whole")
    save, decode = image_embeddings.save_tensors, image_embeddings.decode_files
    saved, decoded = [], []

    def interrupted(path, *rest):
        saved.append(path)
        if len(saved) == 3:
            raise KeyboardInterrupt
        save(path, *rest)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(image_embeddings, "save_tensors", interrupted)
        embedded(run, photos, tmp_path)
    capsys.readouterr()

    def counted(names, *rest):
        decoded.extend(names)
        return decode(names, *rest)

    monkeypatch.setattr(image_embeddings, "decode_files", counted)
    again = embedded(run, photos, tmp_path)
    assert len(decoded) == 36 - 16  # two parts of eight were stored
    assert capsys.readouterr().err.startswith("embedded 36 of 36 images")
    assert again.paths == whole.paths and torch.equal(again.vectors, whole.vectors)


def test_a_damaged_part_is_made_again(run, photos, tmp_path, parts_of_eight):
    whole = embedded(run, photos, tmp_path)
    part = sorted((tmp_path / "unfinished").iterdir())[1]
    part.write_bytes(part.read_bytes()[:-3])
    assert torch.equal(embedded(run, photos, tmp_path).vectors, whole.vectors)


def test_a_part_is_made_again_once_a_file_of_it_can_be_read(
    run, photos, tmp_path, parts_of_eight, unreadable
):
    whole = embedded(run, photos, tmp_path / "whole")
    with unreadable("green/05.png"):
        parts = [embedded(run, photos, tmp_path) for _ in range(2)]
    for embeddings in parts:  # made, and from the stored parts
        assert len(embeddings.paths) == 35 and embeddings.unread == ("green/05.png",)
    again = embedded(run, photos, tmp_path)
    assert again.paths == whole.paths and again.unread == ()


def test_parts_of_other_images_are_removed(run, photos, tmp_path, parts_of_eight):
    embedded(run, photos, tmp_path)
    with opened_images(str(photos), "images") as (archive, files):
        embed(
            load_encoder(run), archive, files[:8],
            batch_size=8, unfinished=tmp_path / "unfinished", key="other",
        )  # fmt: skip
    assert {p.name for p in (tmp_path / "unfinished").iterdir()} == {"other-000000.safetensors"}


def test_broken_files_are_named_and_left_out(run, photos, tmp_path, parts_of_eight):
    (photos / "green" / "05.png").write_bytes(b"no image")
    (photos / "red" / "11.png").write_bytes(b"")
    embeddings = embedded(run, photos, tmp_path)
    assert len(embeddings.paths) == len(embeddings.vectors) == 34
    assert [name for name, _ in embeddings.broken] == ["green/05.png", "red/11.png"]


def test_nothing_but_broken_files_is_an_error(run, tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.png").write_bytes(b"no image")
    with pytest.raises(ConfigError, match=r"no image can be read \(a.png: not an image\)"):
        embedded(run, tmp_path / "bad", tmp_path)


def test_an_encoder_of_gray_images_gets_gray_ones_as_its_own_preprocessing_makes_them(tmp_path):
    spec = EncoderSpec(model=ModelConfig(name="convnet", width=8), channels=1, image_size=8)
    encoder = Encoder(spec)
    colours = torch.randint(0, 256, (3, 30, 40, 3), generator=torch.Generator().manual_seed(0))
    for number, pixels in enumerate(colours.byte().numpy()):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    with opened_images(str(tmp_path), "images") as (archive, files):
        embeddings = embed(
            encoder, archive, files, batch_size=64, unfinished=tmp_path / "u", key="k"
        )
    again = encoder.encode([tmp_path / path for path in embeddings.paths])
    assert torch.equal(embeddings.vectors, again)


def test_features_that_are_not_finite_are_an_error(run, photos, tmp_path):
    encoder = load_encoder(run)
    next(encoder.parameters()).fill_(torch.nan)
    with opened_images(str(photos), "images") as (archive, files), pytest.raises(
        ValueError, match="features of 36 images are not finite"
    ):  # fmt: skip
        embed(encoder, archive, files, batch_size=64, unfinished=tmp_path / "u", key="k")
