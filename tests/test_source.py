"""Every form of "images", in a stable order; every wrong one, with an error that says what to do."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from deltaenergy.core.needs import OF_IMAGES
from deltaenergy.data.decode import UnreadableImage
from deltaenergy.data.items import ImageItem, load_rgb
from deltaenergy.data.streams import ImageStream
from deltaenergy.errors import InputError
from deltaenergy.source import (
    Features,
    LabelledFeatures,
    Rows,
    as_source,
    image_stream,
    is_unlabelled,
    labelled_folders,
    list_images,
    load_images,
    require_images,
)


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """photos/{cat/1.png,cat/2.JPG,dog/1.png} and things that are no images, in the current folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("cat/1.png", "cat/2.JPG", "dog/1.png"):
        path = Path("photos", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(path)
    for name in ("notes.txt", ".hidden.png", "cat/Thumbs.db", ".cache/a.png"):
        path = Path("photos", name)
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return Path("photos")


def ids(images: Any) -> list[str]:
    return [item.id for item in load_images(images)]


def message(call: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        call()
    return str(caught.value)


# Paths, folders, patterns.


def test_one_file(photos: Path) -> None:
    assert load_images("photos/cat/1.png") == [ImageItem("photos/cat/1.png", Path("photos/cat/1.png"))]
    assert load_images(photos / "cat" / "1.png") == load_images("photos/cat/1.png")


def test_folder_with_one_folder_per_class(photos: Path) -> None:
    items = load_images("photos")
    assert [(item.id, item.label) for item in items] == [
        ("photos/cat/1.png", "cat"),
        ("photos/cat/2.JPG", "cat"),
        ("photos/dog/1.png", "dog"),
    ]
    assert all(load_rgb(item).size == (4, 4) for item in items)


def test_flat_folder_has_no_labels(photos: Path) -> None:
    assert [(item.id, item.label) for item in load_images("photos/cat/")] == [
        ("photos/cat/1.png", None),
        ("photos/cat/2.JPG", None),
    ]


def test_images_beside_class_folders_have_no_label(photos: Path) -> None:
    Image.new("RGB", (4, 4)).save("photos/b.png")
    assert {item.id: item.label for item in load_images("photos")}["photos/b.png"] is None


def test_deep_folders_are_labelled_by_the_innermost(photos: Path) -> None:
    Path("photos/sketch/cow").mkdir(parents=True)
    Path("photos/sketch/cow/1.png").touch()
    assert load_images("photos")[-1].label == "cow"


def test_links(photos: Path) -> None:
    Path("photos/dog/2.png").symlink_to("gone.png")
    Path("photos/fox").symlink_to("dog")
    Path("photos/dog/up").symlink_to("../../photos")
    Path("photos/dog/self").symlink_to(".")
    found = ids("photos")
    assert found == [
        "photos/cat/1.png",
        "photos/cat/2.JPG",
        "photos/dog/1.png",
        "photos/dog/2.png",
        "photos/fox/1.png",
        "photos/fox/2.png",
    ]
    # A broken link is there by name, and unreadable when its turn comes.
    with pytest.raises(UnreadableImage, match="symbolic link"):
        load_rgb(load_images("photos/dog/2.png")[0])


def test_patterns(photos: Path) -> None:
    assert ids("photos/*/1.png") == ["photos/cat/1.png", "photos/dog/1.png"]
    assert ids("photos/**/*.png") == ["photos/cat/1.png", "photos/dog/1.png"]
    assert ids(str(photos.resolve() / "dog" / "?.png")) == [str(photos.resolve() / "dog/1.png")]


def test_pattern_that_matches_folders_and_other_files(photos: Path) -> None:
    everything = ["photos/cat/1.png", "photos/cat/2.JPG", "photos/dog/1.png"]
    assert ids("photos/*") == everything
    assert ids("photos/**") == everything
    Path("photos/empty").mkdir()
    assert ids("photos/*") == everything


def test_brackets_in_a_name_are_no_pattern_if_the_file_exists(photos: Path) -> None:
    path = Path("photos/dog/holiday [1].png")
    Image.new("RGB", (4, 4)).save(path)
    assert ids(str(path)) == [path.as_posix()]
    assert ids([str(path)]) == [path.as_posix()]


def test_home_folder(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(photos.resolve()))
    assert ids("~/dog") == [(photos.resolve() / "dog/1.png").as_posix()]


def test_names_outside_ascii(photos: Path) -> None:
    Path("photos/Füchse 🦊").mkdir()
    Image.new("RGB", (4, 4)).save("photos/Füchse 🦊/写真.png")
    item = load_images("photos")[0]
    assert (item.id, item.label) == ("photos/Füchse 🦊/写真.png", "Füchse 🦊")


def test_names_that_are_no_valid_text(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")  # Latin-1, as old archives hold it
    (tmp_path / name).mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / name / "1.png")
    item = load_images(tmp_path)[0]
    assert item.label == "caf\\udce9"
    assert item.id.encode("utf-8").endswith(b"/caf\\udce9/1.png")
    assert load_rgb(item).size == (4, 4)


def test_order_does_not_depend_on_the_order_of_creation(tmp_path: Path) -> None:
    names = [f"{i}.png" for i in (10, 9, 1, 100, 2)]
    for name in names:
        (tmp_path / name).touch()
    assert [Path(i).name for i in ids(tmp_path)] == sorted(names)


class Listed:
    """A directory entry as the system lists it: with its type, and without a look at the file."""

    def __init__(self, name: str, folder: bool) -> None:
        self.name, self.folder = name, folder

    def is_dir(self) -> bool:
        return self.folder

    def is_file(self) -> bool:
        return not self.folder

    def is_symlink(self) -> bool:
        return False


def test_a_hundred_thousand_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The listing is a stand-in because writing so many files takes longer than all other tests together.
    def listing(folder: Path) -> contextlib.AbstractContextManager[Iterator[Listed]]:
        top = Path(folder) == tmp_path
        names = (f"{i:03}" if top else f"{i:03}.jpg" for i in reversed(range(100 if top else 1000)))
        return contextlib.nullcontext(Listed(name, top) for name in names)

    looked_at = []
    stat = Path.stat
    monkeypatch.setattr(os, "scandir", listing)
    monkeypatch.setattr(Path, "stat", lambda self, **options: looked_at.append(self) or stat(self, **options))
    items = load_images(str(tmp_path))
    assert len(items) == 100_000
    assert items[1001] == ImageItem(f"{tmp_path.as_posix()}/001/001.jpg", tmp_path / "001" / "001.jpg", "001")
    assert not any(path.suffix == ".jpg" for path in looked_at), "files must not be looked at one by one"


def test_many_real_files(tmp_path: Path) -> None:
    for i in range(2000):
        os.close(os.open(f"{tmp_path}/{i:04}.jpg", os.O_CREAT))
    assert [Path(name).name for name in ids(tmp_path)] == [f"{i:04}.jpg" for i in range(2000)]


def test_a_list_of_file_names_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"folder/{i}.jpg" for i in range(1000)]
    monkeypatch.setattr(Path, "stat", lambda self, **_: pytest.fail("looked at the disk"))
    assert ids(names) == names


# Lists, and images in memory.


def test_list_of_everything(photos: Path) -> None:
    array = np.full((3, 5, 3), 7, np.uint8)
    image = Image.new("RGB", (2, 2))
    data = Path("photos/dog/1.png").read_bytes()
    items = load_images(["photos/cat", Path("photos/dog/1.png"), image, array, data, bytearray(data)])
    names = ["photos/cat/1.png", "photos/cat/2.JPG", "photos/dog/1.png", "image 3", "image 4", "image 5", "image 6"]
    assert [item.id for item in items] == names
    assert [load_rgb(item).size for item in items] == [(4, 4), (4, 4), (4, 4), (2, 2), (5, 3), (4, 4), (4, 4)]
    assert np.array_equal(np.asarray(load_rgb(items[4])), array)


def test_generators_tuples_and_arrays_of_names(photos: Path) -> None:
    names = ["photos/dog/1.png", "photos/cat/1.png"]
    assert ids(name for name in names) == names
    assert ids(tuple(names)) == names
    assert ids(np.array(names)) == names


def test_one_image_in_memory() -> None:
    assert ids(Image.new("RGB", (2, 2))) == ["image 0"]
    assert ids(b"abc") == ["image 0"]
    assert ids(np.zeros((2, 2, 3), np.uint8)) == ["image 0"]


def test_arrays_of_other_shapes() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), np.uint8)
    batch = load_images(pixels)
    assert [item.id for item in batch] == ["image 0", "image 1"]
    assert np.array_equal(np.asarray(load_rgb(batch[1])), pixels[1])
    grey = pixels[0, :, :, 0]
    for array in (grey, grey[..., None]):
        assert np.array_equal(np.asarray(load_rgb(load_images(array)[0]))[..., 1], grey)
    # A view with strides of its own, such as BGR turned to RGB.
    assert np.array_equal(np.asarray(load_rgb(load_images(pixels[0][..., ::-1])[0])), pixels[0][..., ::-1])


def test_resolved_items_stay(photos: Path) -> None:
    items = load_images("photos")
    assert load_images(items) == items


def test_missing_files_in_a_list_are_left_for_later(photos: Path) -> None:
    items = load_images(["photos/dog/1.png", "photos/gone.jpg", "photos/gone", "photos/*.webp"])
    assert [item.id for item in items] == ["photos/dog/1.png", "photos/gone.jpg", "photos/gone", "photos/*.webp"]
    for item in items[1:]:
        with pytest.raises(UnreadableImage, match="does not exist"):
            load_rgb(item)


def test_the_same_image_twice_has_two_ids(photos: Path) -> None:
    name = "photos/dog/1.png"
    assert ids([name, name, "photos/dog"]) == [name, f"{name} (2)", f"{name} (3)"]
    assert ids(["a.png", "a.png", "a.png (2)"]) == ["a.png", "a.png (2)", "a.png (2) (2)"]


def test_no_images_at_all() -> None:
    assert load_images([]) == []


# Tables.

TABLES = {
    "t.csv": "path,label,domain\ncat/1.png,tabby,indoor\ndog/1.png,,\n",
    "t.tsv": "Label\tImage_Path\tdomain\ntabby\tcat/1.png\tindoor\n\tdog/1.png\t\n",
    "t.jsonl": '{"file": "cat/1.png", "class": "tabby", "domain": "indoor"}\n\n{"file": "dog/1.png"}\n',
}


@pytest.mark.parametrize("name", [*TABLES, "t.parquet"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_table_files(photos: Path, name: str, mark: str) -> None:
    if name == "t.parquet":
        columns = {"filename": ["cat/1.png", "dog/1.png"], "label": ["tabby", None], "domain": ["indoor", None]}
        pq.write_table(pa.table(columns), photos / name)
    else:
        (photos / name).write_text(mark + TABLES[name], encoding="utf-8")
    assert load_images(f"photos/{name}") == [
        ImageItem("photos/cat/1.png", Path("photos/cat/1.png"), "tabby", "indoor"),
        ImageItem("photos/dog/1.png", Path("photos/dog/1.png")),
    ]


def test_absolute_paths_and_numbers_as_labels(photos: Path) -> None:
    absolute = (photos / "dog/1.png").resolve()
    (photos / "t.csv").write_text(f"image,class\n{absolute},7\n")
    assert load_images("photos/t.csv") == [ImageItem(absolute.as_posix(), absolute, "7")]


def test_rows_without_a_path_are_listed_as_unreadable(photos: Path) -> None:
    (photos / "t.csv").write_text("path,label\ndog/1.png,dog\n,cat\ngone.png,cat\n")
    items = load_images("photos/t.csv")
    assert [item.id for item in items] == ["photos/dog/1.png", "row 2", "photos/gone.png"]
    with pytest.raises(UnreadableImage, match="names no file"):
        load_rgb(items[1])


def test_table_in_memory(photos: Path) -> None:
    columns = {"image_path": ["photos/cat/1.png", "photos/dog/1.png"], "label": ["cat", None]}
    expected = [
        ImageItem("photos/cat/1.png", Path("photos/cat/1.png"), "cat"),
        ImageItem("photos/dog/1.png", Path("photos/dog/1.png")),
    ]
    assert load_images(pa.table(columns)) == expected

    class Frame:
        """What pandas, polars and others have in common."""

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return pa.table(columns).__arrow_c_stream__(requested_schema)

    assert load_images(Frame()) == expected
    assert load_images(pa.RecordBatch.from_pydict(columns)) == expected
    once = image_stream(pa.table(columns).to_reader())
    assert list(once) == list(once) == expected, "a reader that gives its rows once"


def test_pandas(photos: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"path": ["photos/cat/1.png", None], "label": ["cat", None]}, index=[5, 9])
    assert [(item.id, item.label) for item in load_images(frame)] == [("photos/cat/1.png", "cat"), ("row 2", None)]


def test_table_errors(photos: Path) -> None:
    (photos / "t.csv").write_text("picture,label\na.png,x\n")
    text = message(lambda: load_images("photos/t.csv"))
    assert "'picture', 'label'" in text
    assert "'path'" in text
    (photos / "t.csv").write_text("path\n")
    assert "no rows" in message(lambda: load_images("photos/t.csv"))
    (photos / "t.csv").write_text("")
    assert "no column" in message(lambda: load_images("photos/t.csv"))
    (photos / "t.jsonl").write_text('["a.png"]\n')
    assert "line 1" in message(lambda: load_images("photos/t.jsonl"))
    (photos / "t.parquet").write_text("no table")
    assert "photos/t.parquet" in message(lambda: load_images("photos/t.parquet"))
    pq.write_table(pa.table({"path": ["a.png"] * 1000}), photos / "t.parquet", compression="none", use_dictionary=False)
    data = bytearray((photos / "t.parquet").read_bytes())
    data[4:40] = b"\xff" * 36  # the header of the first page; the schema stands at the end
    (photos / "t.parquet").write_bytes(data)
    assert "photos/t.parquet" in message(lambda: load_images("photos/t.parquet"))
    assert "'photos/t.csv'" in message(lambda: load_images(["photos/tt.csv"]))
    assert "no column" in message(lambda: load_images(pa.table({"a": [1]})))


def problems(images: object) -> list[tuple[str, str | None]]:
    return [(item.id, item.problem) for item in load_images(images)]


def test_a_bad_row_is_unreadable_and_those_after_it_are_read(photos: Path) -> None:
    """Whatever is wrong with it; what is wrong with the first row alone is an error."""
    long = "x" * 200_000
    (photos / "t.csv").write_text(f'path,label\ndog/1.png,dog\n"{long}",dog\ncat/1.png,cat\n', encoding="utf-8")
    first, bad, last = problems("photos/t.csv")
    assert (first, last) == (("photos/dog/1.png", None), ("photos/cat/1.png", None))
    assert bad[0] == "row 2" and "field" in str(bad[1])
    (photos / "t.csv").write_bytes(b"path\ndog/1.png\n\xff\xfe\x00\ncat/1.png")  # a name that no file has
    assert [problem for _, problem in problems("photos/t.csv")] == [None] * 3
    with pytest.raises(UnreadableImage, match="no file has this name"):
        load_rgb(load_images("photos/t.csv")[1])
    (photos / "t.jsonl").write_text('{"path": "a.png"}\n{"path": \n["b.png"]\n{"label": "x"}\n{"path": "c.png"}\n')
    found = problems("photos/t.jsonl")
    assert [name for name, _ in found] == ["photos/a.png", "row 2", "row 3", "row 4", "photos/c.png"]
    assert "line 2" in str(found[1]) and "line 3" in str(found[2]) and "no file" in str(found[3])
    pq.write_table(pa.table({"path": [f"{i}.png" for i in range(1000)]}), photos / "t.parquet", row_group_size=500)
    data = bytearray((photos / "t.parquet").read_bytes())
    second = pq.ParquetFile(photos / "t.parquet").metadata.row_group(1).column(0)
    start = second.dictionary_page_offset or second.data_page_offset
    data[start : start + 36] = b"\xff" * 36
    (photos / "t.parquet").write_bytes(data)
    found = problems("photos/t.parquet")
    assert [name for name, _ in found] == [*(f"photos/{i}.png" for i in range(500)), "photos/t.parquet (the rest)"]
    assert "from row 501" in str(found[-1])


def test_labels_of_a_later_line_are_not_lost(photos: Path) -> None:
    """Every line of a JSONL file may have columns of its own."""
    (photos / "t.jsonl").write_text('{"path": "a.png"}\n{"File": "b.png", "Class": "cat"}\n')
    assert [(item.id, item.label) for item in load_images("photos/t.jsonl")] == [
        ("photos/a.png", None),
        ("photos/b.png", "cat"),
    ]


def test_bytes_and_records_that_are_no_pictures(photos: Path) -> None:
    for column, value, held in (
        ("path", b"a.png", "bytes"),
        ("image", {"url": "x"}, "records"),
        ("file", ["a"], "lists"),
    ):
        pq.write_table(pa.table({column: [value]}), photos / "t.parquet")
        assert f"has {held} in column '{column}'" in message(lambda: load_images("photos/t.parquet"))
    (photos / "t.jsonl").write_text('{"image": {"bytes": "abc"}}\n')
    assert "has records in column 'image'" in message(lambda: load_images("photos/t.jsonl"))


# Labelled folders.


def test_labelled_folders(photos: Path) -> None:
    assert labelled_folders("photos") == load_images("photos")
    Path("photos/dog/more").mkdir()
    Path("photos/dog/more/3.png").touch()
    assert labelled_folders("photos")[-1] == ImageItem("photos/dog/more/3.png", Path("photos/dog/more/3.png"), "dog")


def test_labelled_folders_with_domains(photos: Path) -> None:
    Path("pacs").mkdir()
    photos.rename("pacs/photo")
    items = labelled_folders("pacs", domains=True)
    assert [(item.domain, item.label) for item in items] == [("photo", "cat"), ("photo", "cat"), ("photo", "dog")]


def test_labelled_folders_errors(photos: Path) -> None:
    assert "Did you mean 'photos'?" in message(lambda: labelled_folders("photo"))
    assert "is a file" in message(lambda: labelled_folders("photos/dog/1.png"))
    assert "'photos/dog/1.png' is outside the class folders" in message(lambda: labelled_folders("photos/dog"))
    assert "outside the domain and class folders" in message(lambda: labelled_folders("photos", domains=True))
    Path("photos/ant").mkdir()
    assert "class folder 'photos/ant'" in message(lambda: labelled_folders("photos"))
    Path("photos/ant").rmdir()
    Path("photos/loose.png").touch()
    assert "'photos/loose.png'" in message(lambda: labelled_folders("photos"))
    Path("none").mkdir()
    assert "No images in 'none'" in message(lambda: labelled_folders("none"))
    Path("none/style").mkdir()
    assert "'none/style'" in message(lambda: labelled_folders("none", domains=True))
    Path("none/style/cat").mkdir()
    assert "'none/style/cat'" in message(lambda: labelled_folders("none", domains=True))


# Wrong use.


def test_a_path_that_does_not_exist(photos: Path) -> None:
    assert message(lambda: load_images("photoz")) == "'photoz' does not exist. Did you mean 'photos'?"
    assert "Did you mean 'photos/cat'?" in message(lambda: load_images("photos/Kat"))
    assert "'nowhere' is missing already" in message(lambda: load_images("nowhere/a/b.png"))
    assert message(lambda: load_images("photos/dog/x.png")) == "'photos/dog/x.png' does not exist."
    assert "Did you mean 'photos/dog/1.png'?" in message(lambda: load_images("photos/dog/1.jpg"))
    assert "Did you mean 'photos/cat/2.JPG'?" in message(lambda: load_images("photos/cat/2.jpg"))


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "~nobody-of-this-name/a.png", "a/" * 3000])
def test_impossible_names(name: str) -> None:
    assert "does not exist" in message(lambda: load_images(name))
    assert "does not exist" in message(lambda: labelled_folders(name))
    assert len(load_images([name])) == 1


def test_folder_that_may_not_be_entered(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "no permission to look into 'photos'" in message(lambda: load_images("photos/locked.png"))


def test_empty_folder(photos: Path) -> None:
    Path("empty").mkdir()
    assert "it is empty" in message(lambda: load_images("empty"))
    assert "'empty'" in message(lambda: load_images(["photos", "empty"]))
    Path("empty/notes.txt").touch()
    assert "'empty/notes.txt'" in message(lambda: load_images("empty"))


def test_folder_that_cannot_be_listed(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    assert "cannot be listed: no permission" in message(lambda: load_images("photos"))


def test_pattern_without_match(photos: Path) -> None:
    assert "'photos/*.webp'" in message(lambda: load_images("photos/*.webp"))
    assert "photos/notes.txt" in message(lambda: load_images("photos/*.txt"))


@pytest.mark.parametrize(
    ("images", "part"),
    [
        (3, "of type int"),
        (None, "None"),
        ({"path": ["a.png"]}, "of type dict"),
        ([3], "images[0] is of type int"),
        (["a.png", ["b.png"]], "images[1] is of type list"),
        ("", "not a path"),
        ("ftp://example.org/a.png", "'ftp://'"),
        (np.zeros((4, 4, 3)), "astype('uint8')"),
        (np.zeros((3, 9, 9), np.uint8), "transpose(1, 2, 0)"),
        (np.zeros(5, np.uint8), "shape (5,)"),
        (np.zeros((4, 4, 3), np.int64), "uint8"),
    ],
)
def test_wrong_types(images: Any, part: str) -> None:
    assert part in message(lambda: load_images(images))


def test_tensor_names_the_remedy() -> None:
    torch = pytest.importorskip("torch")
    assert "uint8" in message(lambda: load_images(torch.zeros(2, 3, 4, 4, dtype=torch.int64)))
    assert "(5, 4, 5)" in message(lambda: load_images(torch.zeros(5, 4, 5)))
    assert ids(torch.zeros(2, 4, 4, 3, dtype=torch.uint8)) == ["image 0", "image 1"]


def test_kinds_of_sources(photos: Path) -> None:
    features = np.eye(3, dtype=np.float32)
    assert isinstance(as_source("photos"), ImageStream) and as_source("photos").lacks == {}
    (array, rows) = as_source(features, ["a", "b", "c"]), as_source(LabelledFeatures(features, [0, 1, 1]).items("ab"))
    assert isinstance(array, Features) and array.features is features
    assert isinstance(rows, Rows) and [item.label for item in rows.items] == ["a", "b", "b"]
    for source in (array, rows):
        assert set(source.lacks) == OF_IMAGES and as_source(source) is source
    assert as_source(load_images("photos") + load_images("photos")).lacks == {}


def test_what_is_no_image_is_not_opened() -> None:
    (item,) = Features(np.eye(1)).items()
    with pytest.raises(UnreadableImage, match="only its name"):
        load_rgb(item)
    with pytest.raises(InputError, match="who needs pixels"):
        require_images([item], "who")


def test_labels_and_mixtures_that_do_not_fit(photos: Path) -> None:
    assert "labels belong to features" in message(lambda: as_source("photos", ["cat"]))
    assert "labels has 1 entries for 3" in message(lambda: as_source(np.eye(3), ["cat"]))
    assert "mixes" in message(lambda: as_source([*load_images("photos"), *Features(np.eye(2)).items()]))


def test_whether_images_have_classes_is_told_without_listing_them(photos: Path) -> None:
    assert [is_unlabelled(as_source(given)) for given in (np.eye(2), "photos/cat", [])] == [True, False, False]
    assert is_unlabelled(as_source(load_images("photos/cat"))) and not is_unlabelled(as_source(load_images("photos")))
    assert is_unlabelled(list_images("photos/cat", hold=True)) and not is_unlabelled(list_images("photos", hold=True))
    assert not is_unlabelled(as_source(LabelledFeatures(np.eye(2), ["a", "b"])))
