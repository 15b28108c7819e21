import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset, Subset, TensorDataset

from orchestra_flwr.config import ConfigError
from orchestra_flwr.data import UNLABELLED
from orchestra_flwr.data.any_dataset import as_dataset
from orchestra_flwr.square_image import square_image

RANDOM = np.random.default_rng(0)
PICTURES = [
    Image.fromarray(RANDOM.integers(0, 256, (9 + n, 12, 3), dtype=np.uint8)) for n in range(6)
]
LABELS = [1, 0, 2, 1, 0, 2]
IMAGES = torch.stack([square_image(picture, 8) for picture in PICTURES])


class Pictures(torch.utils.data.Dataset):
    """As torchvision's: pairs by number, and names of the classes."""

    classes = ["zebra", "ant", "cat"]

    def __len__(self):
        return len(PICTURES)

    def __getitem__(self, number):
        return PICTURES[number % 6], LABELS[number % 6]  # no end of its own


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(PICTURES, LABELS, strict=True))


@pytest.mark.parametrize(
    "given",
    [
        Pictures(),
        Stream(),
        TensorDataset(IMAGES, torch.tensor(LABELS)),
        TensorDataset(IMAGES / 255, torch.tensor(LABELS)),
        [*zip(PICTURES, LABELS, strict=True)],
        [{"image": p, "label": n} for p, n in zip(PICTURES, LABELS, strict=True)],
    ],
    ids=["by number", "stream", "tensors", "floats", "pairs", "mappings"],
)
def test_labelled_images_of_all_kinds(given):
    data = as_dataset(given, "mine", 8)
    assert torch.equal(data.train.images, IMAGES)
    assert data.train.labels.tolist() == LABELS
    expected = ("zebra", "ant", "cat") if isinstance(given, Pictures) else ("0", "1", "2")
    assert (data.name, data.test, data.train.classes) == ("mine", None, expected)


@pytest.mark.parametrize(
    "given",
    [
        PICTURES,
        iter(PICTURES),
        IMAGES,
        IMAGES.permute(0, 2, 3, 1).numpy(),
        [(picture, -1) for picture in PICTURES],
        [{"image": picture, "label": None} for picture in PICTURES],
    ],
    ids=["list", "iterator", "tensor", "array", "-1", "none"],
)
def test_images_without_labels(given):
    data = as_dataset(given, "mine", 8)
    assert torch.equal(data.train.images, IMAGES)
    assert data.train.labels is None and data.train.classes == ()


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_gray_images_need_no_axis_of_channels(kind):
    gray = RANDOM.integers(0, 256, (6, 8, 8), dtype=np.uint8)
    images = as_dataset(kind(gray), "mine", 8).train.images
    assert torch.equal(images, torch.from_numpy(gray)[:, None].expand(6, 3, 8, 8))


def test_the_size_of_pictures_before_resizing_is_known():
    pictures = [Image.new("RGB", size) for size in ((90, 70), (60, 50), (200, 300))]
    assert as_dataset(pictures, "x", 8).shorter_side == 70
    assert as_dataset(list(zip(pictures, "aab", strict=True)), "x", 8).shorter_side == 70
    both = (list(zip(pictures, "aab", strict=True)), list(zip(pictures, "aab", strict=True)))
    assert as_dataset(both, "x", 8).shorter_side == 70
    assert as_dataset(torch.zeros(3, 3, 20, 20, dtype=torch.uint8), "x", 8).shorter_side is None


def test_training_and_test_images():
    train = Subset(Pictures(), [0, 1, 2, 3])
    test = Subset(Pictures(), [4, 5])
    for given in (
        (train, test),
        {"train": train, "test": test},
        {"validation": test, "train": train},
    ):
        data = as_dataset(given, "mine", 8)
        assert torch.equal(data.train.images, IMAGES[:4]) and torch.equal(
            data.test.images, IMAGES[4:]
        )
        assert data.test.labels.tolist() == [0, 2]
        assert data.train.classes == data.test.classes == ("zebra", "ant", "cat")


def test_test_images_may_number_their_classes_in_another_order():
    """Folders that lack a class, for example: the names are what counts."""
    test = Pictures()
    test.classes = ["cat", "zebra", "ant"]
    data = as_dataset((Pictures(), test), "mine", 8)
    assert data.test.classes == ("zebra", "ant", "cat")
    assert data.test.labels.tolist() == [{0: 2, 1: 0, 2: 1}[label] for label in LABELS]
    test.classes = ["cat", "zebra", "owl"]
    with pytest.raises(
        ConfigError, match=r"test image \d: its label 'owl' is no class of the train"
    ):
        as_dataset((Pictures(), test), "mine", 8)


def test_test_images_without_labels_are_left_out_with_a_word(caplog):
    labelled = [(PICTURES[0], 0), (PICTURES[1], 1)]
    hidden = [(picture, -1) for picture in PICTURES[2:4]]
    data = as_dataset({"train": labelled, "test": hidden}, "mine", 8)
    assert data.test is None and "2 of 2 test images have no label; they" in caplog.text


def test_labels_that_are_texts_are_sorted():
    names = ["cat", "ant", "cat", "zebra", "ant", "ant"]
    data = as_dataset([*zip(PICTURES, names, strict=True)], "mine", 8)
    assert data.train.classes == ("ant", "cat", "zebra")
    assert data.train.labels.tolist() == [1, 0, 1, 2, 0, 0]


def test_a_number_and_its_text_are_one_class():
    """A column of both, as pandas reads one that begins with numbers."""
    labels = [2, "1", 10, 1, "b", "10"]
    train = list(zip(PICTURES, labels, strict=True))
    data = as_dataset((train, list(zip(PICTURES, ["2", 1, "b"], strict=False))), "mine", 8)
    assert data.train.classes == ("1", "2", "10", "b")
    assert data.train.labels.tolist() == [1, 0, 2, 0, 3, 2]
    assert data.test.labels.tolist() == [1, 0, 3]


def test_some_labels(caplog):
    labelled = list(zip(PICTURES, ["dog", None, "cat"], strict=False))
    dataset = as_dataset((labelled, labelled[::-1]), "mine", 8)
    assert dataset.train.classes == ("cat", "dog")
    assert dataset.train.labels.tolist() == [1, UNLABELLED, 0]
    assert dataset.test.labels.tolist() == [0, 1]
    assert torch.equal(dataset.test.images, dataset.train.images[[2, 0]])
    assert "dataset: 1 of 3 training images have no label; they train without" in caplog.text
    assert "dataset: 1 of 3 test images have no label; they are left out" in caplog.text


def test_labels_of_a_table_of_pandas():
    """Its empty cells are NaN or NA, and make floating-point numbers of whole ones."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    for labels, classes in (
        (pandas.Series(["dog", None, "cat", float("nan"), "", " "]), ("cat", "dog")),
        (pandas.Series([7, None, 3, None, None, None]), ("3", "7")),
        (["dog", pandas.NaT, "NaT", pandas.NaT, None, None], ("NaT", "dog")),
        (pandas.Series([7, None, 3, None, None, None], dtype="Int64"), ("3", "7")),
    ):
        train = as_dataset([*zip(PICTURES, labels, strict=True)], "mine", 8).train
        assert train.classes == classes and train.labels.tolist() == [1, -1, 0, -1, -1, -1]


def test_columns_of_pandas(tmp_path):
    """Rows that were chosen keep their numbers, which are no places."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    for number, picture in enumerate(PICTURES):
        picture.save(tmp_path / f"{number}.png")
    table = pandas.DataFrame({"file": [str(tmp_path / f"{n}.png") for n in range(6)]})
    chosen = as_dataset((table.file[table.index > 3], table.file[:3].tolist()), "mine", 8)
    assert torch.equal(chosen.train.images, as_dataset(PICTURES[4:], "mine", 8).train.images)
    with pytest.raises(ConfigError, match="the training images are a table; give its columns"):
        as_dataset(table, "mine", 8)
    with pytest.raises(ConfigError, match="and the second holds labels"):
        as_dataset((table.file, pandas.Series(list("aabbcc"))), "mine", 8)


def test_broken_files_are_named_and_left_out(tmp_path, caplog):
    for number, picture in enumerate(PICTURES):
        picture.save(tmp_path / f"{number}.png")
    files = sorted(tmp_path.iterdir())
    whole = as_dataset([*zip(files, LABELS, strict=True)], "mine", 8).train
    files[1].write_bytes(files[1].read_bytes()[:40])
    files[2].write_bytes(b"")
    train = as_dataset([*zip(files, LABELS, strict=True)], "mine", 8).train
    kept = [0, 3, 4, 5]
    assert torch.equal(train.images, whole.images[kept])
    assert "dataset: skipped 2 training images: " in caplog.text and "2.png: empty" in caplog.text
    with pytest.raises(ConfigError, match="there are no training images"):
        as_dataset(files[1:3], "mine", 8)
    with pytest.raises(ConfigError, match="training image 1: .*No such file"):
        as_dataset([files[0], tmp_path / "none.png"], "mine", 8)


class Opening(Pictures):
    """As torchvision's ImageFolder, which decodes its files itself."""

    def __init__(self, files):
        self.files = files

    def __getitem__(self, number):
        return Image.open(self.files[number]).convert("RGB"), LABELS[number]


def test_broken_files_that_a_data_set_decodes_are_named_and_left_out(tmp_path, caplog):
    for number, picture in enumerate(PICTURES):
        picture.save(tmp_path / f"{number}.png")
    files = sorted(tmp_path.iterdir())
    content = files[1].read_bytes()
    files[1].write_bytes(content[:60])  # cut
    files[2].write_bytes(b"no image")
    files[3].write_bytes(content[:50] + bytes(20) + content[70:])  # damaged
    train = as_dataset(Opening(files), "mine", 8).train
    assert torch.equal(train.images, IMAGES[[0, 4, 5]])
    assert train.labels.tolist() == [LABELS[number] for number in (0, 4, 5)]
    assert "dataset: skipped 3 training images: training image 1: " in caplog.text
    assert "training image 2: cannot identify image file" in caplog.text


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "dataset: there are no training images"),
        (np.zeros((12, 12, 3)), r"training images must be several, and \(12, 12, 3\) is the shape"),
        (np.zeros((4, 12, 12)), r"for one: image\[None\]; for gray ones: images\[..., None\]"),
        (torch.zeros(3, 9, 9), r"for one: image\[None\]; for gray ones: images\[:, None\]"),
        ((PICTURES, torch.zeros(4, 9, 9)), "the test images must be several"),
        ([()], "dataset: training image 0: an image must be a path, a PIL image"),
        (5, "dataset: the training images are no data set, but int"),
        (np.array(5), "dataset: the training images are no data set, but a single value"),
        ((PICTURES, torch.tensor(5)), "dataset: the test images are no data set, but a single"),
        ("photos", "dataset: the training images are a path, not a data set: .* data=image_folder"),
        (Path("photos"), "dataset: the training images are a path, not a data set: "),
        ({"test": PICTURES}, "dataset: must have a split named train, not only test"),
        (
            {"train": PICTURES, "foo": PICTURES},
            "dataset: foo is no split that is used, must be one of train, test, validation, valid",
        ),
        ((PICTURES,) * 3, r"dataset: must be one, or a pair \(train, test\), not 3"),
        (
            [Pictures(), Pictures()],
            r"not Pictures; two data sets, .* are a tuple: \(train, test\)$",
        ),
        ([PICTURES, PICTURES], "; two data sets, for training and testing, are a tuple: "),
        ([[(PICTURES[0], 0)] * 4, [(PICTURES[0], 0)]], "; two data sets, for training and test"),
        ([IMAGES.numpy(), IMAGES.numpy()], "; two data sets, for training and testing, are a "),
        (
            ((PICTURES[0], 0), (PICTURES[1], 1)),
            r"not int; a tuple of two is \(train, test\): pairs",
        ),
        (((PICTURES[0], "a"), (PICTURES[1], "b")), "; a tuple of two is .* must stand in a list$"),
        ((PICTURES, np.arange(3)), r"labels; .* one data set: list\(zip\(images, labels\)\)"),
        ((PICTURES, ["cat", "dog"]), "a pair is .train, test., and the second holds labels"),
        ((PICTURES, ["a caption " * 40, "dog"]), "and the second holds labels"),
        (((PICTURES, np.arange(3)),) * 2, r"one data set: list\(zip\(images, labels\)\)"),
        ([(PICTURES[0], 0.5)], "training image 0: its label must be a whole number or a text"),
        ([torch.zeros(3, 9, 9), torch.full((3, 9, 9), -2.0)], "training image 1: values of .*norm"),
        (
            [(PICTURES[0], torch.eye(3)[1])],
            r"one class of the image, not an array of shape \(3,\)$",
        ),
        ([(PICTURES[0], np.zeros((2, 20)))], r"not an array of shape \(2, 20\)$"),
        ([(PICTURES[0], {"boxes": torch.zeros(3, 4)})], "the one class of the image, not {'boxes'"),
        ([(PICTURES[0], [0, 1])], r"the one class of the image, not \[0, 1\]$"),
        ([{"image": PICTURES[0], "label": PICTURES[1]}], "its label must be a whole number"),
        ([{"label": 3}], "dataset: no image among label"),
        (([(PICTURES[0], 0)], [(PICTURES[1], 7)]), "test image 0: its label 7 is no class"),
        (Subset(Pictures(), []), "there are no training images"),
    ],
)
def test_what_cannot_be_used_is_one_line(given, words):
    with pytest.raises(ConfigError, match=words) as error:
        as_dataset(given, "mine", 8)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"label_source": "human", "label": 1}, "1"),
        ({"label_source": "human", "label_id": 7, "class": 1}, "1"),
        ({"target": 1, "label_source": "human"}, "1"),
        ({"my_label": 1, "weight": 0.5}, "1"),
    ],
)
def test_the_label_of_a_mapping(columns, expected):
    data = as_dataset([{**columns, "image": picture} for picture in PICTURES], "mine", 8)
    assert data.train.classes == (expected,)


@pytest.mark.parametrize("names", [("label_a", "label_b"), ("class", "target")])
def test_several_columns_that_may_be_the_label_are_named(names):
    items = [{"image": picture, **dict.fromkeys(names, 0)} for picture in PICTURES]
    with pytest.raises(ConfigError) as error:
        as_dataset(items, "mine", 8)
    assert str(error.value) == (
        f"dataset: several columns may hold the label: {', '.join(names)}; "
        "rename the one with the classes to label, or remove the others"
    )


@pytest.mark.skipif(not importlib.util.find_spec("datasets"), reason="needs Hugging Face datasets")
def test_columns_of_class_labels():
    import datasets

    fine, coarse = (datasets.ClassLabel(names=names) for names in (["a", "b", "c"], ["x", "y"]))

    def made(**columns):
        features = {name: kind for name, (kind, _) in columns.items()}
        values = {name: value for name, (_, value) in columns.items()}
        return datasets.Dataset.from_dict(
            {**values, "img": PICTURES},
            features=datasets.Features({**features, "img": datasets.Image()}),
        )

    both = made(coarse=(coarse, [0, 1] * 3), fine=(fine, LABELS))
    with pytest.raises(ConfigError, match=r"several columns .*: coarse, fine; rename"):
        as_dataset(both, "mine", 8)
    text = datasets.Value("string")
    for given in (
        both.rename_column("fine", "label"),  # its names, not those of the other column
        made(fine=(fine, LABELS), label_by=(text, ["human"] * 6)),
    ):
        train = as_dataset(given, "mine", 8).train
        assert train.classes == ("a", "b", "c") and train.labels.tolist() == LABELS


@pytest.mark.skipif(not importlib.util.find_spec("datasets"), reason="needs Hugging Face datasets")
def test_data_sets_of_hugging_face():
    import datasets

    features = datasets.Features(
        {"id": datasets.Value("int64"), "img": datasets.Image(),
         "label": datasets.ClassLabel(names=["zebra", "ant", "cat"])}
    )  # fmt: skip
    rows = {"id": list(range(6)), "img": PICTURES, "label": LABELS}
    whole = datasets.Dataset.from_dict(rows, features=features)
    splits = datasets.DatasetDict(train=whole.select(range(4)), test=whole.select([4, 5]))
    data = as_dataset(splits, "mine", 8)
    assert torch.equal(data.train.images, IMAGES[:4]) and torch.equal(data.test.images, IMAGES[4:])
    assert data.train.labels.tolist() == LABELS[:4]
    assert data.train.classes == ("zebra", "ant", "cat")
    assert as_dataset(whole.remove_columns("label"), "mine", 8).train.labels is None
    stream = as_dataset(whole.to_iterable_dataset(), "mine", 8)
    assert stream.train.classes == ("zebra", "ant", "cat")
