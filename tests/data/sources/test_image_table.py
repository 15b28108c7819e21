"""Images that a table lists."""

import shutil
import zipfile

import pytest
from PIL import Image

from orchestra_flwr.config import ConfigError, DataConfig
from orchestra_flwr.config.choices import PartitionConfig
from orchestra_flwr.data import UNLABELLED, load_dataset, partition_by_name


@pytest.fixture
def config(tmp_path):
    """Nine images a/0.png .. c/8.png of the values 0 to 8, and a table of some lines."""
    for number in range(9):
        folder = tmp_path / "images" / "abc"[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), number).save(folder / f"{number}.png")

    def make(text, **options):
        (tmp_path / "table.csv").write_text(text)
        values = {"name": "image_table", "root": str(tmp_path / "images"), "image_size": 8}
        values |= {"table": str(tmp_path / "table.csv"), "cache": str(tmp_path / "cache")}
        return DataConfig.model_validate(values | options)

    return make


def shown(images):
    return images.images[:, 0, 0, 0].tolist()


LINES = "file,label,camera\nb/4.png,cat,north\na/0.png,dog,south\n./c/8.png,cat,south\n"


def test_the_listed_images_alone_in_the_tables_order(config, tmp_path):
    made = config(LINES, group="camera")
    dataset = load_dataset(made)
    assert made.label == "image_table-table"
    assert shown(dataset.train) == [4, 0, 8] and dataset.test is None
    assert dataset.train.classes == ("cat", "dog") and dataset.train.labels.tolist() == [0, 1, 0]
    assert dataset.train.files == ("north/4.png", "south/0.png", "south/8.png")
    packed = tmp_path / "images.zip"
    with zipfile.ZipFile(packed, "w") as out:
        for file in (tmp_path / "images").rglob("*.png"):
            out.write(file, file.relative_to(tmp_path / "images"))
    assert shown(load_dataset(config(LINES, root=str(packed))).train) == [4, 0, 8]


def test_folders_are_groups_of_listed_images(config, tmp_path):
    """Without a column of owners, and whatever the cache holds."""
    for _ in range(2):
        images = load_dataset(config(LINES)).train
        assert images.files == ("b/4.png", "a/0.png", "c/8.png")
    by_folder = PartitionConfig(name="groups")
    parts = partition_by_name(by_folder, images, 3, 0)
    assert {name: part.tolist() for name, part in parts.items()} == {"a": [1], "b": [0], "c": [2]}
    groups = tmp_path / "groups.csv"
    groups.write_text("file,group\na/0.png,x\nb/4.png,x\nc/8.png,y\n")
    by_table = PartitionConfig.model_validate({"name": "groups", "csv": str(groups)})
    parts = partition_by_name(by_table, images, 2, 0)
    assert {name: part.tolist() for name, part in parts.items()} == {"x": [0, 1], "y": [2]}


def test_a_table_may_write_accents_otherwise(config, tmp_path):
    (tmp_path / "images" / "b").rename(tmp_path / "images" / "e\u0301te\u0301")
    assert shown(load_dataset(config(LINES.replace("b/", "été/"))).train) == [4, 0, 8]


def test_names_may_begin_with_spaces(config, tmp_path, caplog):
    """Those of files first; a name with the spaces of the table is found without them."""
    (tmp_path / "images" / "b").rename(tmp_path / "images" / " 27")
    lines = LINES.replace("b/4", " 27/4").replace("a/0.png", " a/0.png ").replace("cat", " cat")
    train = load_dataset(config(lines, group="camera")).train
    assert shown(train) == [4, 0, 8] and train.classes == ("cat", "dog")
    assert train.files[0] == "north/4.png" and "left out" not in caplog.text
    with pytest.raises(ConfigError, match=r"line 5:  a/0\.png  is listed twice"):
        load_dataset(config(f"{lines} a/0.png ,dog,south\n"))


def test_a_name_that_fits_several_files_is_said_to(config, tmp_path, caplog):
    """It is not missing: the cure is another one."""
    shutil.copy(tmp_path / "images" / "a" / "0.png", tmp_path / "images" / "b" / "0.png")
    assert shown(load_dataset(config("file,label\n0,dog\n4,cat\nnone,cat\n")).train) == [4]
    assert "1 of 3 images are not below data.root and are left out, such as none" in caplog.text
    says = "1 of 3 images fit several files below data.root and are left out, such as 0"
    assert says in caplog.text


def test_if_all_names_fit_several_files_two_of_them_are_named(config, tmp_path):
    for folder in "bc":
        shutil.copy(tmp_path / "images" / "a" / "0.png", tmp_path / "images" / folder / "0.png")
    with pytest.raises(ConfigError) as error:
        load_dataset(config("file,label\n0,dog\n"))
    assert str(error.value).endswith(
        "by a name that fits one file: 0 is a/0.png, b/0.png and 1 more; files must be named by "
        "their paths below it"
    )


def test_test_images_that_are_trained_on_are_counted(config, tmp_path, caplog):
    """By any of their names."""
    test = tmp_path / "test.csv"
    test.write_text("file,label\n4,cat\n0,dog\na/3.png,cat\n")
    load_dataset(config(LINES, test_table=str(test)))
    says = f"data.test_table={test}: 2 of 3 images are training images as well"
    assert [says in message for message in caplog.messages] == [True]
    caplog.clear()
    test.write_text("file,label\na/3.png,cat\n")
    load_dataset(config(LINES, test_table=str(test)))
    assert not caplog.messages


def test_images_without_an_owner_are_said_to_be_of_one(config, caplog):
    train = load_dataset(config(LINES.replace("south", ""), group="camera")).train
    assert train.files == ("north/4.png", "%/0.png", "%/8.png")
    assert "2 of 3 images have no camera; together they count as one group, named %" in caplog.text
    caplog.clear()
    load_dataset(config(LINES, group="camera"))
    assert "camera" not in caplog.text


def test_an_edited_label_is_read_again(config):
    assert load_dataset(config(LINES)).train.labels.tolist() == [0, 1, 0]
    assert load_dataset(config(LINES.replace("dog", "cat"))).train.labels.tolist() == [0, 0, 0]


def test_several_labels_of_an_image(config, tmp_path):
    lines = 'file,label\na/0.png,cat;dog\nb/1.png,\na/3.png,"dog ; "\nb/4.png,cat\n'
    (tmp_path / "test.csv").write_text("file,label\nc/8.png,eel;dog\n")
    dataset = load_dataset(config(lines, test_table=str(tmp_path / "test.csv")))
    assert dataset.train.labels is None and dataset.train.classes == ("cat", "dog")
    assert dataset.train.tags.int().tolist() == [[1, 1], [0, 0], [0, 1], [1, 0]]
    assert dataset.test.tags.int().tolist() == [[0, 1]]  # nothing can be learned of eels
    held = load_dataset(config(lines, test_share=0.5))
    assert (len(held.train.tags), len(held.test.tags)) == (2, 2)


def test_the_training_table_decides_whether_images_have_several_labels(config, tmp_path):
    (tmp_path / "test.csv").write_text("file,label\nc/8.png,cat;dog\n")
    lines = "file,label\na/0.png,cat\nb/1.png,dog\n"
    with pytest.raises(ConfigError, match="data.label=label: test images must have one label each"):
        load_dataset(config(lines, test_table=str(tmp_path / "test.csv")))


def test_without_labels(config):
    dataset = load_dataset(config(LINES, label=None))
    assert dataset.train.targets is None and dataset.train.classes == ()


def test_some_labels(config, tmp_path, caplog):
    lines = "file,label\na/0.png,dog\nb/1.png,\na/3.png,cat\n"
    (tmp_path / "test.csv").write_text("file,label\nc/8.png,dog\nb/4.png,\n")
    dataset = load_dataset(config(lines, test_table=str(tmp_path / "test.csv")))
    assert dataset.train.classes == ("cat", "dog")
    assert dataset.train.labels.tolist() == [1, UNLABELLED, 0]
    assert dataset.test.labels.tolist() == [1]
    assert "1 of 3 training images have no label; they train without" in caplog.text
    assert "1 of 2 test images have no label; they are left out" in caplog.text
    none = load_dataset(config("file,label\na/0.png,\nb/1.png,\n"))
    assert none.train.labels is None and none.train.classes == ()


def test_broken_images_of_both_tables_are_left_out_together(config, tmp_path, caplog):
    """Also where both list one image."""
    for name in ("a/3.png", "b/4.png"):
        (tmp_path / "images" / name).write_bytes(b"broken")
    lines = "file,label\na/3.png,cat\nb/1.png,dog\na/0.png,cat\n"
    (tmp_path / "test.csv").write_text("file,label\na/0.png,cat\nb/4.png,dog\nc/8.png,dog\n")
    for _ in range(2):  # decoded, and from the cache
        dataset = load_dataset(config(lines, test_table=str(tmp_path / "test.csv")))
        assert shown(dataset.train) == [1, 0] and dataset.train.labels.tolist() == [1, 0]
        assert shown(dataset.test) == [0, 8] and dataset.test.labels.tolist() == [0, 1]
        assert [name for name, _ in dataset.skipped] == ["a/3.png", "b/4.png"]
    assert [m for m in caplog.messages if m.startswith("skipped")] == [
        "skipped 2 image files: a/3.png: not an image; b/4.png: not an image"
    ]


def test_a_smaller_number_of_groups_is_among_the_larger(config):
    lines = "file,label,owner\n" + "".join(
        f"{'abc'[n % 3]}/{n}.png,{n % 2},owner {n % 4}\n" for n in range(9)
    )

    def owners(groups):
        train = load_dataset(config(lines, group="owner", groups=groups)).train
        return {file.partition("/")[0] for file in train.files}

    drawn = [owners(groups) for groups in (1, 2, 3, 9)]
    assert [len(names) for names in drawn] == [1, 2, 3, 4]
    assert drawn[0] < drawn[1] < drawn[2] < drawn[3]
    with pytest.raises(ConfigError, match=r"^data\.groups=2: data\.group must name a column"):
        load_dataset(config(lines, groups=2))


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("file,kind\na/0.png,x\n", {}, r"has no column label \(data\.label=label\); its first "),
        ("Datei;label\na/0.png;x\n", {}, r"has no column file \(data\.file=file\); .*, label$"),
        (LINES, {"group": "user"}, r"has no column user \(data\.group=user\); .* label, camera"),
        ("file,label\na/0.png,x\n0,y\n", {}, "line 3: 0 is listed twice"),
        ("file,label\nz/9.png,x\n", {}, r"lists no image .* such as z/9\.png; files must be named"),
        ("file,label\n,x\n", {}, "line 2 has no file"),
        ("file,label\n", {}, r"lists no image below data\.root"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_used_is_one_line(config, text, options, says):
    with pytest.raises(ConfigError, match=rf"^data\.table=\S+: {says}") as error:
        load_dataset(config(text, **options))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("missing", ["root", "table"])
def test_root_and_table_must_be_given(config, missing):
    with pytest.raises(ConfigError, match=r"^data\.root must name .*, data\.table the CSV"):
        load_dataset(config(LINES, **{missing: None}))


def test_a_test_class_without_training_images_is_refused(config, tmp_path):
    (tmp_path / "test.csv").write_text("file,label\nc/8.png,eel\n")
    with pytest.raises(ConfigError, match="a class without training images, eel"):
        load_dataset(config(LINES, test_table=str(tmp_path / "test.csv")))
