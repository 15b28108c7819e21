"""Tables that spreadsheets open, and what people write in them."""

import csv
import io
import unicodedata

import pytest

from orchestra_flwr.config import ConfigError
from orchestra_flwr.data.image_files.file_table import (
    named_files,
    read_file_table,
    table_text,
    values_by_file,
)

FORMULAS = ["=1+1", '=HYPERLINK("x")', "+SUM(A1)", "-2+3", "@SUM(1)", "-", "'=1", "''@x"]
PLAIN = ["cat", "a=b", "1.5", "-1", "+2.5e3", "'quoted'", "", "it's", "-0.25"]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_becomes_a_text(text: str):
    (row,) = csv.reader(io.StringIO(table_text([("path", text)]), newline=""))
    assert row == ["path", "'" + text]


@pytest.mark.parametrize(("text", "shown"), [("\t=1", r"\x09=1"), ("\r=1", r"\x0d=1")])
def test_a_cell_begins_with_no_control_character(text: str, shown: str):
    assert table_text([(text, text)]) == f"{shown},{shown}\n"


@pytest.mark.parametrize("text", PLAIN)
def test_numbers_and_other_texts_stay(text: str):
    (row,) = csv.reader(io.StringIO(table_text([("path", text)]), newline=""))
    assert row == ["path", text]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_what_was_written_is_read(tmp_path, separator: str):
    """Predictions that a person has corrected can be labels."""
    names = ["=a.jpg", "'=b.jpg", "@c/d.jpg", "-e.jpg", "-5"]
    text = table_text([("path", "label"), *((name, f"+{name}") for name in names)])
    file = tmp_path / "labels.csv"
    file.write_text(text.replace(",", separator))
    assert read_file_table("labels", str(file), ("path", "label")) == {n: f"+{n}" for n in names}


def test_a_second_value_is_refused(tmp_path):
    file = tmp_path / "labels.csv"
    file.write_text("path,label\na.jpg,cat\n./a.jpg,dog\n")
    with pytest.raises(ConfigError, match=r"line 3: a\.jpg has a second label"):
        read_file_table("labels", str(file), ("path", "label"))


@pytest.mark.parametrize("line", ['b.jpg,"cat', '"b.jpg,cat', 'b.jpg,"cat" dog'])
def test_a_quote_that_is_not_closed_swallows_no_lines(tmp_path, line: str):
    file = tmp_path / "labels.csv"
    file.write_text(f"path,label\na.jpg,cat\n{line}\nc.jpg,dog\n")
    with pytest.raises(ConfigError, match="cannot be read .*is a quote missing"):
        read_file_table("labels", str(file), ("path", "label"))


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_the_first_line_may_have_quotes(tmp_path, separator: str):
    file = tmp_path / "labels.csv"
    file.write_text(f'"path"{separator}"label"\n"a.jpg"{separator}"a ""b""\nc"\n')
    assert read_file_table("labels", str(file), ("path", "label")) == {"a.jpg": 'a "b"\nc'}


def test_one_table_serves_for_training_and_for_labels(tmp_path):
    """Its first column is `file` there and `path` here; a table that has both means each."""
    for header, other in (("path", "file"), ("file", "path")):
        file = tmp_path / f"{header}.csv"
        file.write_text(f"{header},label\na.jpg,cat\n")
        for column in (header, other):
            assert read_file_table("labels", str(file), (column, "label")) == {"a.jpg": "cat"}
    both = tmp_path / "both.csv"
    both.write_text("file,path,label\na.jpg,photos/a.jpg,cat\n")
    assert read_file_table("labels", str(both), ("path", "label")) == {"photos/a.jpg": "cat"}
    assert read_file_table("labels", str(both), ("file", "label")) == {"a.jpg": "cat"}


@pytest.mark.parametrize("header", ["path,Label,label", "path,label,label", "file,file,label"])
def test_columns_with_one_name_are_not_confused(tmp_path, header: str):
    """The last one would be read without a word, whichever was meant."""
    file = tmp_path / "labels.csv"
    file.write_text(f"{header}\na.jpg,3,cat\n")
    with pytest.raises(ConfigError, match=r"labels.csv: has several columns \w+, in capitals or"):
        read_file_table("labels", str(file), ("path", "label"))


def test_columns_that_are_not_read_may_share_a_name(tmp_path):
    file = tmp_path / "labels.csv"
    file.write_text("path,,label,\na.jpg,3,cat,4\n")
    assert read_file_table("labels", str(file), ("path", "label")) == {"a.jpg": "cat"}


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_a_file_is_found_whatever_the_form_of_its_accents(form: str):
    """macOS writes u and two dots; on Linux both names can be in a folder."""
    composed, taken_apart = "ü/é.jpg", unicodedata.normalize("NFD", "ü/é.jpg")
    file = unicodedata.normalize(form, composed)
    for listed in (composed, taken_apart):
        assert named_files([listed, "a.jpg"], [file, "b.jpg"]) == {listed: file, "a.jpg": "a.jpg"}
    both = [composed, taken_apart]
    assert named_files(both, both) == {composed: composed, taken_apart: taken_apart}
    assert named_files([file], both) == {file: file}
    other = ({*both} - {file}).pop()
    assert named_files(both, [file]) == {file: file, other: other}  # only one of them is there


@pytest.mark.parametrize(
    "name", [" a.jpg", "a.jpg ", " 27/a.jpg", "\u3000a.jpg", " =a.jpg", "=a.jpg "]
)
def test_spaces_around_a_name_may_be_the_files(tmp_path, name: str):
    """What was written is read; where no file has the spaces, they are the table's."""
    file = tmp_path / "labels.csv"
    file.write_text(table_text([("path", "label"), (name, " cat ")]))
    values = read_file_table("labels", str(file), ("path", "label"))
    for files in ([name, name.strip()], [name], [name.strip()]):
        assert values_by_file("labels", "label", values, files) == {files[0]: "cat"}


@pytest.mark.parametrize("cell", ["\ta.jpg", "a.jpg\t ", " ./a.jpg", '" a.jpg\n"'])
def test_what_a_person_leaves_around_a_name_is_removed(tmp_path, cell: str):
    file = tmp_path / "labels.csv"
    file.write_text(f"path,label\n{cell},cat\n")
    values = read_file_table("labels", str(file), ("path", "label"))
    assert values_by_file("labels", "label", values, ["a.jpg"]) == {"a.jpg": "cat"}


def test_apostrophes_are_removed_once_whatever_is_around_them():
    assert named_files([" '=a.jpg"], ["=a.jpg"]) == {" '=a.jpg": "=a.jpg"}
    assert named_files(["'=a.jpg "], ["=a.jpg", "'=a.jpg"]) == {"'=a.jpg ": "'=a.jpg"}


def test_a_cell_of_spaces_names_no_file(tmp_path):
    file = tmp_path / "labels.csv"
    file.write_text("path,label\n  ,cat\n")
    with pytest.raises(ConfigError, match="line 2 has no path or no label"):
        read_file_table("labels", str(file), ("path", "label"))


def test_two_names_of_one_file_have_one_value():
    values = {"a.jpg": "cat", " a.jpg": "dog"}
    assert values_by_file("labels", "label", values, [*values]) == values
    with pytest.raises(ConfigError, match=r"^labels=x: a\.jpg has a second label$"):
        values_by_file("labels=x", "label", values, ["a.jpg"])
    same = dict.fromkeys(values, "cat")
    assert values_by_file("labels", "label", same, ["a.jpg"]) == {"a.jpg": "cat"}
