"""Labels as people write them; what is wrong with them is said in one line."""

import zipfile

import pytest

from orchestra_flwr.config import ConfigError
from orchestra_flwr.use.label_files import check_enough, is_table, known_labels, read_table


def table(tmp_path, text, name="labels.csv"):
    (tmp_path / name).write_bytes(text.encode())
    return read_table(str(tmp_path / name))


def test_a_table_with_other_columns_quotes_and_a_mark_of_spreadsheets(tmp_path):
    text = '\ufeffid,label,path\n1,cat,"a, b/ü.jpg"\n2, dog ,c.jpg\n2,dog,c.jpg\n'
    assert table(tmp_path, text) == {"a, b/ü.jpg": "cat", "c.jpg": "dog"}
    assert table(tmp_path, "path\tlabel\na.jpg\tcat\n", "labels.tsv") == {"a.jpg": "cat"}
    assert is_table("x.CSV") and not is_table("folder") and not is_table("examples.zip")


@pytest.mark.parametrize("content", ["path,label\na.jpg,cat\n", ""])
def test_a_file_that_is_no_zip_must_have_the_ending_of_a_table(tmp_path, content):
    file = tmp_path / "labels.txt"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"labels\.txt: must be .* in \.csv or \.tsv$"):
        is_table(str(file))
    (tmp_path / "classes.zip").write_text(content)  # damaged
    assert not is_table(str(tmp_path / "classes.zip"))
    with zipfile.ZipFile(file, "w"):
        pass
    assert not is_table(str(file))


def test_an_empty_cell_is_no_label(tmp_path):
    """The table of a data set where some images have labels serves here as well."""
    text = "file,label,owner\na.jpg,cat,x\nb.jpg,,x\nc.jpg, ,y\nd.jpg\n"
    assert table(tmp_path, text) == {"a.jpg": "cat"}


@pytest.mark.parametrize("separator", [",", ";", "\t", " ; "])
@pytest.mark.parametrize("head", ["path label", "Path Label note", "note LABEL path"])
def test_a_table_as_spreadsheets_write_it(tmp_path, separator, head):
    """Commas, semicolons or tabs; columns in any order, with capitals and spaces."""
    columns = head.split()
    cells = {"path": "./cats/1.jpg", "label": "cat, dog" if separator != "," else "cat"}
    row = [cells.get(column.lower(), "-") for column in columns]
    text = "\n".join(separator.join(line) for line in (columns, row))
    known = known_labels("labels.csv", table(tmp_path, text), "p", {"cats/1.jpg"})
    assert known == {"cats/1.jpg": cells["label"]}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_only_ends_of_lines_divide_them(tmp_path, end):
    """Names of files may hold what is a separator elsewhere; they are known as they are printed."""
    rows = ["path,label", "a\x85b.jpg,cat", "a\u2028b.jpg,dog", "a\x0bb.jpg,eel", "c.jpg,\x0bcat"]
    assert table(tmp_path, end.join(rows) + end) == {
        r"a\x85b.jpg": "cat",
        r"a\u2028b.jpg": "dog",
        r"a\x0bb.jpg": "eel",
        "c.jpg": "cat",
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Image,label\na,b\n", "has no column path; .* path and label, and names image, label$"),
        ("", "has no column path; .*, and names none$"),
        ("path,label\n,cat\n", "line 2 has no path or no label"),
        ("path,label\na.jpg,cat\na.jpg,dog\n", "line 3: a.jpg has a second label"),
        ("path,label\na, b.jpg,cat\n", "line 2 has more fields than the first line"),
        ('path,label\n"' + 200_000 * "x", "cannot be read .field larger than field limit"),
    ],
)
def test_a_wrong_table(tmp_path, text, reason):
    with pytest.raises(ConfigError, match=reason) as error:
        table(tmp_path, text)
    assert "\n" not in str(error.value) and "labels=" in str(error.value)


def test_a_missing_table(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be read \(No such file"):
        read_table(str(tmp_path / "none.csv"))


def test_too_few_classes_or_images():
    with pytest.raises(ConfigError, match="at least two classes, not 1"):
        check_enough("x.csv", {str(i): "cat" for i in range(9)})
    named = {str(i): "cat" if i < 9 else "dog" for i in range(13)}
    with pytest.raises(ConfigError, match="class dog has 4 labelled images, at least 5"):
        check_enough("x.csv", named)
    check_enough("x.csv", {**named, "13": "dog"})


def test_unknown_paths():
    with pytest.raises(ConfigError, match=r"x.csv: b.jpg and 1 more cannot be found .* images=p"):
        known_labels("x.csv", {"a.jpg": "", "b.jpg": "", "c.jpg": ""}, "p", {"a.jpg"})
    assert known_labels("x.csv", {"a.jpg": "x"}, "p", {"a.jpg", "d.jpg"}) == {"a.jpg": "x"}


def test_the_form_of_accents_may_differ():
    labels = {"é.jpg": "x", "b.jpg": "y"}
    known = {"e\u0301.jpg", "b.jpg"}
    found = known_labels("x.csv", labels, "p", known)
    assert found == {"e\u0301.jpg": "x", "b.jpg": "y"}


def test_a_name_may_begin_with_a_space(tmp_path):
    """As `orchestra-label` writes it into predictions.csv."""
    labels = table(tmp_path, "path,label\n a.jpg, x\n b.jpg,y\n")
    found = known_labels("x.csv", labels, "p", {" a.jpg", "a.jpg", "b.jpg"})
    assert found == {" a.jpg": "x", "b.jpg": "y"}
