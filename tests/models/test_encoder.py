import json
import time

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import SafetensorError

import orchestra_flwr
from orchestra_flwr.config import ConfigError, ModelConfig
from orchestra_flwr.models import Encoder, EncoderSpec, save_encoder, tensors_sha256


@pytest.fixture
def encoder():
    spec = EncoderSpec(model=ModelConfig(name="convnet", width=8), channels=3, image_size=16)
    return Encoder(spec)


def test_survives_saving_bit_for_bit(encoder, tmp_path):
    save_encoder(tmp_path / "encoder.safetensors", encoder, rounds=3)
    again = orchestra_flwr.load_encoder(tmp_path)  # the run folder
    images = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8)
    assert torch.equal(encoder(images), again(images))
    assert json.loads((tmp_path / "encoder.json").read_text())["about"] == {"rounds": 3}
    assert not again.training and not any(p.requires_grad for p in again.parameters())


def test_a_digest_changes_with_every_tensor(encoder):
    other = Encoder(encoder.spec)
    other.load_state_dict(encoder.state_dict())
    digests = {tensors_sha256(encoder)}
    assert tensors_sha256(other) in digests
    tensors = other.state_dict().values()
    for tensor in tensors:
        tensor[(-1,) * tensor.ndim] += 1
        digests.add(tensors_sha256(other))
    assert len(digests) == 1 + len(tensors)
    assert tensors_sha256(other.to(torch.bfloat16)) not in digests


@pytest.mark.parametrize("name", ["convnet", "resnet18", "cct", "vit_tiny"])
def test_an_empty_batch_has_no_features(name):
    model = ModelConfig(name=name, width=24)
    encoder = Encoder(EncoderSpec(model=model, channels=3, image_size=32))
    for dtype in (torch.uint8, torch.float32):
        assert encoder(torch.zeros(0, 3, 32, 32, dtype=dtype)).shape == (0, encoder.dim)


@pytest.mark.filterwarnings("error")
def test_gradients_of_the_images_pass_through_it(encoder):
    spec = encoder.spec
    images = torch.rand(2, spec.channels, spec.image_size, spec.image_size, requires_grad=True)
    encoder(images).sum().backward()
    assert images.grad.abs().sum() > 0


def test_uint8_and_float_images_mean_the_same(encoder):
    images = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    torch.testing.assert_close(encoder(images), encoder(images.float() / 255))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.int16])
def test_other_types_of_numbers_mean_the_same(encoder, dtype):
    images = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    cast = images.to(dtype) if not dtype.is_floating_point else images.to(dtype) / 255
    torch.testing.assert_close(encoder(cast), encoder(images))


def test_images_and_weights_of_different_precision_go_together(encoder):
    images = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(encoder(images.half()), encoder(images), atol=0.05, rtol=0.05)
    features = encoder(images)
    halved = encoder.to(torch.bfloat16)(images)
    assert halved.dtype == torch.bfloat16
    torch.testing.assert_close(halved.float(), features, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("highest", [255.0, -1.0, float("nan")])
def test_floats_that_are_not_in_0_to_1_are_refused(encoder, highest):
    with pytest.raises(ValueError, match=r"in 0\.\.255 or floating-point numbers in \[0, 1\]"):
        encoder(torch.full((2, 3, 16, 16), highest))


def test_what_is_no_tensor_is_refused(encoder):
    with pytest.raises(TypeError, match=r"takes a tensor, not ndarray \(encoder\.encode takes"):
        encoder(np.zeros((2, 3, 16, 16), np.uint8))


def test_channels_last_are_refused_with_what_to_do(encoder):
    with pytest.raises(ValueError, match=r"images\.permute\(0, 3, 1, 2\)"):
        encoder(torch.zeros(2, 16, 16, 3))


def test_preprocess_gives_what_the_encoder_takes(encoder, tmp_path):
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 30, 3), np.uint8))
    picture.save(tmp_path / "noise.png")
    image = encoder.preprocess(tmp_path / "noise.png")
    assert image.shape == (3, 16, 16) and image.dtype == torch.uint8
    assert torch.equal(encoder.preprocess(picture), image)
    assert encoder(image[None]).shape == (1, encoder.dim)
    gray = Encoder(encoder.spec.model_copy(update={"channels": 1}))
    assert gray(gray.preprocess(picture)[None]).shape == (1, encoder.dim)


def _pictures(count):
    random = np.random.default_rng(0)
    return [Image.fromarray(random.integers(0, 256, (20, 24, 3), np.uint8)) for _ in range(count)]


def test_encode_takes_images_of_all_kinds_in_their_order(encoder, tmp_path):
    pictures = _pictures(7)
    for number, picture in enumerate(pictures):
        picture.save(tmp_path / f"{number}.png")
    expected = torch.cat([encoder(encoder.preprocess(image)[None]) for image in pictures])
    files = sorted(tmp_path.glob("*.png"))
    names = [str(file) for file in files]
    for images in (
        files,
        names,
        np.array(names),
        np.array(files),
        iter(pictures),
        [files[0], *pictures[1:]],
    ):
        features = encoder.encode(images, batch_size=3)
        assert features.dtype == torch.float32 and not features.requires_grad
        torch.testing.assert_close(features, expected)
    arrays = np.stack([np.array(image) for image in pictures])
    tensors = torch.from_numpy(arrays).permute(0, 3, 1, 2)
    for images in (arrays, tensors, tensors.double() / 255):  # 20 x 24 pixels
        torch.testing.assert_close(encoder.encode(images), expected)
    small = torch.stack([encoder.preprocess(image) for image in pictures])
    assert torch.equal(encoder.encode(small, batch_size=99), encoder(small))


@pytest.mark.parametrize("alone", [True, False])
def test_encode_evaluates_whatever_the_modes_and_changes_none(encoder, alone):
    """Statistics of the batch would be its features' and then the encoder's."""
    images = _pictures(1 if alone else 5)
    expected = encoder.encode(images)
    state = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    encoder.backbone.train()
    modes = [module.training for module in encoder.modules()]
    assert torch.equal(encoder.encode(images), expected)
    assert [module.training for module in encoder.modules()] == modes
    assert all(torch.equal(tensor, state[name]) for name, tensor in encoder.state_dict().items())


def test_encode_of_a_training_encoder_copies_no_weights(encoder):
    encoder.train()
    used = encoder._evaluating()
    assert used is not encoder and encoder.eval()._evaluating() is encoder
    weights = zip(used.state_dict().values(), encoder.state_dict().values(), strict=True)
    assert all(one.data_ptr() == other.data_ptr() for one, other in weights)


def test_encode_passes_few_large_images_at_once():
    """More of them leave a CPU's caches, and take the more memory."""
    spec = EncoderSpec(model=ModelConfig(name="convnet", width=8), channels=3, image_size=512)
    encoder, counts, done = Encoder(spec), [], []
    encoder.register_forward_hook(lambda module, images, _: counts.append(len(images[0])))
    images = torch.zeros(6, 3, 512, 512, dtype=torch.uint8)
    assert encoder.encode(images, progress=lambda number, _: done.append(number)).shape[0] == 6
    assert (counts, done) == ([4, 2], [6])


def test_encode_reports_its_progress(encoder, capsys):
    seen = []
    encoder.encode(_pictures(5), batch_size=2, progress=lambda *done: seen.append(done))
    encoder.encode(iter(_pictures(3)), progress=lambda *done: seen.append(done))
    assert seen == [(2, 5), (4, 5), (5, 5), (3, None)]
    encoder.encode(_pictures(3))
    assert capsys.readouterr() == ("", "")
    encoder.encode(_pictures(3), progress=True)
    out, error = capsys.readouterr()
    assert not out and error.startswith("embedded 3 of 3 images, ")


@pytest.mark.parametrize(
    ("images", "words"),
    [
        ([], "no images to encode"),
        ("photos", r"several, such as a list, not str \(for one image: \[image\]\)"),
        (5, "several, such as a list, not int"),
        ({"a": np.zeros((9, 9, 3))}, r"not dict \(for its values: images.values\(\)\)$"),
        (torch.zeros(3, 16, 16), r"a tensor \(N, C, H, W\), not \(3, 16, 16\)"),
        (np.zeros((16, 16, 3)), r"an array \(N, H, W, C\), not"),
        (np.array([["a.jpg", "b.jpg"]]), r"an array of paths must be \(N,\), not \(1, 2\)$"),
        ([np.zeros((0, 5, 3))], r"image 0: an array must be \(H, W\), .*, not \(0, 5, 3\)$"),
        ([np.zeros(5)], r"image 0: an array must be \(H, W\), .*, not \(5,\)$"),
        (np.zeros((5, 16, 16)), r"for gray ones: images\[\.\.\., None\]\)"),
        (torch.zeros(5, 16, 16), r"for gray ones: images\[:, None\]\)"),
        ([np.zeros((9, 9)), np.ones((9, 9)) * 200.0], "image 1: values of images must be"),
        ([torch.zeros(3, 9, 9), None], "image 1: an image must be a path"),
    ],
)
def test_encode_names_what_it_cannot_use(encoder, images, words):
    with pytest.raises((TypeError, ValueError), match=words):
        encoder.encode(images)


def test_encode_names_a_broken_file(encoder, tmp_path):
    _pictures(1)[0].save(tmp_path / "0.png")
    (tmp_path / "1.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"image 1: .*1\.png: not an image"):
        encoder.encode(sorted(tmp_path.iterdir()))
    for size in (0, 2.5):
        with pytest.raises(ValueError, match=f"batch_size={size}: must be a whole number, 1 or"):
            encoder.encode(sorted(tmp_path.iterdir()), batch_size=size)


def test_encode_takes_a_column_of_a_table_and_the_values_of_a_mapping(encoder, tmp_path):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    (picture,) = _pictures(1)
    picture.save(tmp_path / "0.png")
    table = pandas.DataFrame({"file": [str(tmp_path / "0.png")]}, index=[7])
    with pytest.raises(TypeError, match=r"one column of a table, .*'file'\], not DataFrame$"):
        encoder.encode(table)
    features = encoder.encode(table["file"])
    assert torch.equal(features, encoder.encode({"a": picture}.values()))


@pytest.mark.slow
def test_a_graph_can_be_made_of_it():
    """Exporters make one of the encoder: no check may depend on values then."""
    model = ModelConfig(name="vit_tiny", width=48)  # plain layers
    encoder = Encoder(EncoderSpec(model=model, channels=3, image_size=32))
    images = torch.rand(2, 3, 32, 32)
    exported = torch.export.export(encoder, (images,)).module()
    torch.testing.assert_close(exported(images), encoder(images))


@pytest.mark.parametrize("shape", [(2, 1, 16, 16), (2, 3, 8, 16), (3, 16, 16)])
def test_refuses_other_shapes(encoder, shape):
    with pytest.raises(ValueError, match="expects images"):
        encoder(torch.zeros(shape))


def test_missing_files_are_named(tmp_path, encoder):
    with pytest.raises(FileNotFoundError, match="encoder.safetensors"):
        orchestra_flwr.load_encoder(tmp_path)
    save_encoder(tmp_path / "encoder.safetensors", encoder)
    (tmp_path / "encoder.json").unlink()
    with pytest.raises(FileNotFoundError, match="encoder.json"):
        orchestra_flwr.load_encoder(tmp_path)


def test_the_path_may_be_at_home_and_is_that_of_the_weights(tmp_path, encoder, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    save_encoder(tmp_path / "encoder.safetensors", encoder)
    assert orchestra_flwr.load_encoder("~").spec == encoder.spec
    with pytest.raises(FileNotFoundError, match=r"json/encoder\.safetensors: no such file"):
        orchestra_flwr.load_encoder(tmp_path / "encoder.json")


def test_weights_of_another_model_are_refused(tmp_path, encoder):
    save_encoder(tmp_path / "encoder.safetensors", encoder)
    description = json.loads((tmp_path / "encoder.json").read_text())
    description["spec"]["model"]["width"] = 16
    del description["sha256"], description["weights_sha256"]  # as version 0.1 wrote it
    (tmp_path / "encoder.json").write_text(json.dumps(description))
    with pytest.raises(ValueError, match="does not fit its description"):
        orchestra_flwr.load_encoder(tmp_path)


@pytest.mark.parametrize(
    ("place", "raised"),
    [
        ("os.fsync", OSError(28, "No space left on device")),
        ("safetensors.torch.serialize_file", SafetensorError("I/O error (os error 28)")),
    ],
)
def test_a_full_disk_leaves_the_old_encoder(encoder, tmp_path, monkeypatch, place, raised):
    save_encoder(tmp_path / "encoder.safetensors", encoder)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def full(*_, **__):
        raise raised

    monkeypatch.setattr(place, full)
    with pytest.raises(OSError, match="No space left"):
        save_encoder(tmp_path / "encoder.safetensors", encoder)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("name", "step"), [("encoder.safetensors", 97), ("encoder.json", 1)], ids=["weights", "json"]
)
def test_no_flipped_bit_is_loaded(encoder, tmp_path, name, step):
    save_encoder(tmp_path / "encoder.safetensors", encoder, rounds=3)
    file = tmp_path / name
    whole = file.read_bytes()
    for place in range(0, len(whole), step):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match="is damaged") as error:
            orchestra_flwr.load_encoder(tmp_path)
        assert str(error.value).startswith(str(file)) and "resume=" in str(error.value)
    file.write_bytes(whole)
    orchestra_flwr.load_encoder(tmp_path)


def test_weights_and_description_of_different_runs_do_not_mix(encoder, tmp_path):
    save_encoder(tmp_path / "encoder.safetensors", encoder)
    weights = (tmp_path / "encoder.safetensors").read_bytes()
    save_encoder(tmp_path / "encoder.safetensors", Encoder(encoder.spec))
    (tmp_path / "encoder.safetensors").write_bytes(weights)
    with pytest.raises(ValueError, match="its checksum is not that in"):
        orchestra_flwr.load_encoder(tmp_path)


def _describe(folder, change):
    """Changes the spec in `encoder.json`, which version 0.1 wrote without checksums."""
    file = folder / "encoder.json"
    description = json.loads(file.read_text())
    del description["sha256"], description["weights_sha256"]
    change(description["spec"])
    file.write_text(json.dumps(description))


def test_a_description_of_version_01_is_read(encoder, tmp_path):
    save_encoder(tmp_path / "encoder.safetensors", encoder)
    _describe(tmp_path, lambda spec: spec.pop("plugins"))
    assert orchestra_flwr.load_encoder(tmp_path).spec == encoder.spec


def test_a_wrong_description_is_named_in_one_line(encoder, tmp_path):
    save_encoder(tmp_path / "encoder.safetensors", encoder)
    _describe(tmp_path, lambda spec: spec.pop("channels"))
    with pytest.raises(ValueError) as error:
        orchestra_flwr.load_encoder(tmp_path)
    assert str(error.value) == f"{tmp_path / 'encoder.json'}: channels: must be given"


MINE = """
    from torch import nn

    from orchestra_flwr.config import Section
    from orchestra_flwr.models import Backbone


    class _Settings(Section):
        depth: int = 1


    class Flat(Backbone):
        Settings = _Settings

        def __init__(self, settings, model, channels):
            super().__init__(settings, model, channels)
            self.dim = channels * 64
            layers = [nn.Linear(self.dim, self.dim) for _ in range(settings.depth)]
            self.layers = nn.Sequential(nn.Flatten(), *layers)

        def forward(self, x):
            return self.layers(x)
"""


@pytest.mark.parametrize("plugins", [("my_package",), ()])
def test_a_backbone_of_a_users_own_is_found_again(user_package, tmp_path, plugins):
    """Whoever makes the spec names its packages, or the model knows them already."""
    user_package({"backbones/flat.py": MINE})
    model = ModelConfig.model_validate({"name": "flat", "depth": 2})
    if not plugins:
        model.look_in(("my_package",))
    spec = EncoderSpec(model=model, channels=1, image_size=8, plugins=plugins)
    encoder = Encoder(spec)
    save_encoder(tmp_path / "encoder.safetensors", encoder)
    again = orchestra_flwr.load_encoder(tmp_path)
    images = torch.rand(3, 1, 8, 8)
    assert torch.equal(encoder(images), again(images))
    assert again.spec.plugins == ("my_package",) and again.spec.model.options == {"depth": 2}


def test_packages_that_the_backbone_is_not_from_are_not_needed(user_package, tmp_path):
    user_package({"methods/mine.py": ""})
    spec = EncoderSpec(
        model=ModelConfig(name="convnet", width=8),
        channels=3,
        image_size=16,
        plugins=("my_package",),
    )
    save_encoder(tmp_path / "encoder.safetensors", Encoder(spec))
    assert orchestra_flwr.load_encoder(tmp_path).spec.plugins == ()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"image_size": 10**6}, "image_size=1000000: input should be less than or equal to 512"),
        ({"channels": 10**9}, "channels=1000000000: input should be 1 or 3"),
        ({"model": {"name": "convnet", "width": 2**15}}, "model.width=32768: input"),
        ({"model": {"name": "vit_tiny", "depth": 10**9}}, "model.depth=1000000000: input"),
        ({"model": {"name": "resnet18", "width": 2**14}}, "its network has 7"),
    ],
)
def test_sizes_of_a_strangers_description_are_bounded(encoder, tmp_path, change, reason):
    save_encoder(tmp_path / "encoder.safetensors", encoder)
    _describe(tmp_path, lambda spec: spec.update(change))
    started = time.monotonic()
    with pytest.raises(ConfigError) as error:
        orchestra_flwr.load_encoder(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'encoder.json'}: {reason}")
    assert "\n" not in str(error.value) and time.monotonic() - started < 20


def test_a_package_is_imported_only_if_the_caller_names_it(encoder, tmp_path, stranger):
    name, marker = stranger
    save_encoder(tmp_path / "encoder.safetensors", encoder)
    _describe(tmp_path, lambda spec: spec.update(plugins=[name]))
    with pytest.raises(ConfigError) as error:
        orchestra_flwr.load_encoder(tmp_path)
    assert str(error.value) == (
        f"{tmp_path / 'encoder.json'} asks for plugins=[{name}], and only packages that you name "
        f"are imported: add plugins=[{name}], in Python plugins=['{name}']"
    )
    with pytest.raises(ConfigError, match="asks for plugins"):
        orchestra_flwr.load_encoder(tmp_path, plugins=["another"])
    assert not marker.exists()
    orchestra_flwr.load_encoder(tmp_path, plugins=[name])
    assert marker.exists()
    orchestra_flwr.load_encoder(tmp_path)  # has been named in this process


def test_a_missing_package_is_one_clear_line(encoder, tmp_path):
    save_encoder(tmp_path / "encoder.safetensors", encoder)
    _describe(tmp_path, lambda spec: spec.update(plugins=["my_package"]))
    with pytest.raises(ValueError) as error:
        orchestra_flwr.load_encoder(tmp_path, plugins=["my_package"])
    assert str(error.value) == (
        f"{tmp_path / 'encoder.json'}: model=convnet: my_package cannot be imported: "
        "ModuleNotFoundError: No module named 'my_package' "
        "(neither installed nor in a folder of PYTHONPATH)"
    )


def test_a_backbone_that_is_not_there_is_one_clear_line(encoder, tmp_path):
    save_encoder(tmp_path / "encoder.safetensors", encoder)
    _describe(tmp_path, lambda spec: spec["model"].update(name="vit"))
    with pytest.raises(ValueError) as error:
        orchestra_flwr.load_encoder(tmp_path)
    assert str(error.value) == (
        f"{tmp_path / 'encoder.json'}: model=vit: must be one of cct, convnet, resnet18, timm, "
        "vit_tiny"
    )
