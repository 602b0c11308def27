"""Class names and templates: what is accepted, and what the errors say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deltaenergy.core.classes import check_classes, check_templates, fill, read_classes
from deltaenergy.errors import InputError


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([], "at least one class"),
        (["dog", " "], r"classes\[1\] is blank"),
        ("dog", "list of names"),
        ([3], "not a string"),
        (["dog", "caf\udce9"], r"classes\[1\]"),
    ],
)
def test_unusable_class_lists_are_refused(classes: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_classes(classes)


@pytest.mark.parametrize("text", ["", "  ", " , "])
def test_a_text_without_a_name_is_empty(text: str) -> None:
    with pytest.raises(InputError, match="classes is empty"):
        check_classes(text)


def test_duplicates_are_kept_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="'missile'"):
        assert check_classes(["missile", "dog", "missile"]) == ("missile", "dog", "missile")


@pytest.mark.parametrize("template", ["a photo", "{} and {}", ""])
def test_a_template_needs_one_place_for_the_name(template: str) -> None:
    with pytest.raises(InputError, match="template"):
        check_templates(template, None)


def test_one_template_or_several() -> None:
    assert check_templates(None, None) == ("a photo of a {}.",)
    assert check_templates(None, ["{}", "the {}"]) == ("{}", "the {}")
    with pytest.raises(InputError, match="not both"):
        check_templates("{}", ["{}"])
    with pytest.raises(InputError, match="must be a list"):
        check_templates(None, "a {}")
    with pytest.raises(InputError, match="empty"):
        check_templates(None, [])


def test_braces_in_a_name_stay() -> None:
    assert fill("a {}.", "{x}") == "a {x}."


def test_class_file_with_blank_lines_and_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "names.txt"
    file.write_bytes("\ufeffdog\r\n\r\n  black cat \n\n".encode())
    assert read_classes(str(file)) == ["dog", "black cat"]


def test_class_argument() -> None:
    assert read_classes("dog, black cat,,") == ["dog", "black cat"]
    assert read_classes(",".join(["a long name"] * 1000)) == ["a long name"] * 1000
    with pytest.raises(InputError, match="`classes` is empty"):
        read_classes(" , ")


def test_unusable_class_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_classes(str(tmp_path / "names.txt"))
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(InputError, match="has no name"):
        read_classes(str(tmp_path / "empty.txt"))
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match="UTF-8"):
        read_classes(str(tmp_path / "latin.txt"))


@pytest.mark.parametrize(
    "argument",
    ["./nope", "../nope", "lists/nope", "~/nope", ".nope", "/nope", "nope.txt", "NOPE.CSV", "dog,./nope"],
)
def test_what_looks_like_a_path_is_no_class_name(
    argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"(nope|NOPE)"):
        read_classes(argument)


def test_names_with_slashes_and_dots_can_be_listed() -> None:
    assert read_classes("tv/monitor,") == ["tv/monitor"]
    assert read_classes("tv/monitor,St. Bernard,.22 rifle") == ["tv/monitor", "St. Bernard", ".22 rifle"]
    assert read_classes("St. Bernard") == ["St. Bernard"]


def test_folders_and_pipes_are_no_lists_of_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="is a folder"):
        read_classes(str(tmp_path))
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(InputError, match="not an ordinary file"):
        read_classes(str(tmp_path / "pipe.txt"))
    # A folder that happens to be called like a class is no hindrance.
    (tmp_path / "dog").mkdir()
    monkeypatch.chdir(tmp_path)
    assert read_classes("dog") == ["dog"]


def test_a_file_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "names.txt").write_text("dog\n")
    assert read_classes("~/names.txt") == ["dog"]


def test_a_huge_file_is_no_list_of_names(tmp_path: Path) -> None:
    with (tmp_path / "huge.txt").open("wb") as file:
        file.truncate(65 << 20)  # sparse
    with pytest.raises(InputError, match="not a list of names"):
        read_classes(str(tmp_path / "huge.txt"))


def test_templates_are_text() -> None:
    with pytest.raises(InputError, match="template"):
        check_templates("a {}\udc80", None)
