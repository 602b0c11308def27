"""The data sets as data: every file is sound, and images are found in the layouts that people have."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from deltaenergy.core.classes import check_templates
from deltaenergy.data.catalogue.audit import check_root, unknown_folders
from deltaenergy.data.catalogue.class_names import name_list
from deltaenergy.data.catalogue.dataset import DatasetMissingError, get_dataset, list_datasets
from deltaenergy.errors import InputError
from tests.data.locked import lock

ISSUED = (
    "imagenet imagenet-v2 imagenet-a imagenet-r imagenet-sketch imagenet-o imagenet-10 imagenet-20 imagenet-100 pacs "
    "vlcs caltech101 dtd food101 inaturalist sun places textures waterbirds placesbg oxford-pets stanford-cars "
    "flowers102 fgvc-aircraft sun397 eurosat ucf101 imagenet-superclass any-folder "
    "ninco ssb-hard openimage-o imagenet-c"
)


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def labels(root: Path, name: str, **options: str) -> list[str | None]:
    return [item.label for item in get_dataset(name).images(root, **options)]


def test_all_data_sets_are_there() -> None:
    assert set(list_datasets()) == set(ISSUED.split())


@pytest.mark.parametrize("name", ISSUED.split())
def test_each_file_is_sound(name: str) -> None:
    dataset = get_dataset(name)
    assert dataset.title and dataset.licence and dataset.obtain and dataset.paper
    assert dataset.sources and dataset.folders
    check_templates(None, dataset.templates)
    check_templates(dataset.template, None)
    if dataset.names_from is not None:
        assert dataset.names_hash == name_list(dataset.names_from).hash
        assert len(dataset.names) > 1
    # Parts of ImageNet-1k come with it, and a user's own folder comes from nowhere.
    assert "https://" in dataset.obtain or "ImageNet-1k" in dataset.obtain or name == "any-folder"


def test_unknown_name_suggests_the_near_one() -> None:
    with pytest.raises(InputError, match="Did you mean 'pacs'"):
        get_dataset("pasc")
    assert get_dataset("ImageNet-1k") is get_dataset("imagenet")
    assert get_dataset("Oxford_Pets").name == "oxford-pets"


def test_imagenet_by_wnid_or_wnid_and_name(tmp_path: Path) -> None:
    touch(
        tmp_path / "imagenet/train/n01440764/a.JPEG",
        tmp_path / "imagenet/val/n01440764_tench/b.JPEG",
        tmp_path / "imagenet/val/n01443537/c.JPEG",
        tmp_path / "imagenet/val/n99999999/no-class.JPEG",
    )
    assert labels(tmp_path, "imagenet", split="val") == ["tench", "goldfish"]
    assert labels(tmp_path, "imagenet", split="train", label="key") == ["n01440764"]
    assert labels(tmp_path, "imagenet-superclass", split="val") == ["cyprinid, cyprinid fish"] * 2
    with pytest.raises(DatasetMissingError, match=r"split 'test'.*train, val"):
        get_dataset("imagenet").images(tmp_path, split="test")


def test_parts_of_imagenet_lie_in_it_or_by_themselves(tmp_path: Path) -> None:
    wnid = name_list("imagenet-10").keys[0]
    touch(tmp_path / f"imagenet/val/{wnid}/a.JPEG", tmp_path / "imagenet/val/n01440764/b.JPEG")
    assert labels(tmp_path, "imagenet-10", label="key") == [wnid]
    touch(tmp_path / f"ImageNet10/val/{wnid}/c.JPEG", tmp_path / f"ImageNet10/val/{wnid}/d.JPEG")
    assert labels(tmp_path, "imagenet-10", label="key") == [wnid, wnid]
    assert len(get_dataset("imagenet").images(tmp_path)) == 2  # ImageNet10 is no part that happens to bear a number


def test_folders_named_by_index(tmp_path: Path) -> None:
    touch(tmp_path / "imagenetv2/imagenetv2-matched-frequency-format-val/1/x.jpeg")
    assert labels(tmp_path, "imagenet-v2") == ["goldfish"]
    touch(tmp_path / "VLCS/PASCAL/full/3/x.jpg", tmp_path / "VLCS/SUN/full/0/x.jpg")
    items = get_dataset("vlcs").images(tmp_path)
    assert [(item.domain, item.label) for item in items] == [("VOC2007", "dog"), ("SUN09", "bird")]
    touch(tmp_path / "other/VLCS/LabelMe/chair/x.jpg")
    assert labels(tmp_path / "other", "vlcs", domain="LabelMe") == ["chair"]


def test_domains(tmp_path: Path) -> None:
    touch(tmp_path / "PACS/art_painting/dog/1.jpg", tmp_path / "PACS/sketch/horse/1.png", tmp_path / "PACS/x/dog/1.jpg")
    dataset = get_dataset("pacs")
    assert [(item.domain, item.label) for item in dataset.images(tmp_path)] == [
        ("art_painting", "dog"),
        ("sketch", "horse"),
    ]
    assert labels(tmp_path, "pacs", domain="sketch") == ["horse"]
    with pytest.raises(InputError, match="Did you mean 'sketch'"):
        dataset.images(tmp_path, domain="sketches")


def write_split(path: Path, splits: dict[str, list[list[object]]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(splits))


def test_coop_split_files(tmp_path: Path) -> None:
    write_split(
        tmp_path / "caltech-101/split_zhou_Caltech101.json",
        {
            "train": [["Faces/image_0001.jpg", 0, "face"]],
            "val": [["airplanes/image_0002.jpg", 7, "airplane"]],
            "test": [["crocodile_head/image_0003.jpg", 30, "crocodile_head"]],
        },
    )
    assert labels(tmp_path, "caltech101", split="train") == ["off-center face"]
    assert labels(tmp_path, "caltech101", split="test") == ["head of a crocodile"]
    assert labels(tmp_path, "caltech101") == ["off-center face", "airplane", "head of a crocodile"]
    # No class folder, and names of their own: the label counts.
    write_split(
        tmp_path / "oxford_flowers/split_zhou_OxfordFlowers.json",
        {
            "train": [],
            "val": [],
            "test": [["image_06773.jpg", 0, "pink primrose"], ["image_1.jpg", 40, "barbeton daisy"]],
        },
    )
    assert labels(tmp_path, "flowers102", split="test") == ["pink primrose", name_list("flowers102").names[40]]
    write_split(
        tmp_path / "stanford_cars/split_zhou_StanfordCars.json",
        {"test": [["cars_test/00001.jpg", 0, "2000 AM General Hummer SUV"]]},
    )
    items = get_dataset("stanford-cars").images(tmp_path, "test")
    assert [item.label for item in items] == ["AM General Hummer SUV 2000"]
    assert items[0].path == tmp_path / "stanford_cars/./cars_test/00001.jpg"
    write_split(
        tmp_path / "sun397/split_zhou_SUN397.json", {"test": [["c/church/indoor/sun_a.jpg", 5, "indoor church"]]}
    )
    assert labels(tmp_path, "sun397") == ["church indoor"]


@pytest.mark.parametrize("text", ["{", "[1]", '{"train": [["a.jpg"]]}'])
def test_broken_split_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "dtd/split_zhou_DescribableTextures.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(InputError, match=r"DescribableTextures\.json"):
        get_dataset("dtd").images(tmp_path)


def test_split_file_with_a_class_of_another_data_set(tmp_path: Path) -> None:
    write_split(tmp_path / "dtd/split_zhou_DescribableTextures.json", {"train": [["x/a.jpg", 0, "unheard-of"]]})
    with pytest.raises(InputError, match=r"'unheard-of'.*a\.jpg"):
        get_dataset("dtd").images(tmp_path)


def test_official_lists(tmp_path: Path) -> None:
    aircraft = tmp_path / "fgvc-aircraft-2013b/data"
    aircraft.mkdir(parents=True)
    (aircraft / "images_variant_test.txt").write_text(
        "0034309 707-320\n0034958 Boeing 717\n".replace("Boeing 717", "A300B4")
    )
    items = get_dataset("fgvc-aircraft").images(tmp_path, "test")
    assert [(item.label, item.path) for item in items] == [
        ("707-320", aircraft / "images/0034309.jpg"),
        ("A300B4", aircraft / "images/0034958.jpg"),
    ]
    (tmp_path / "oxford_pets/annotations").mkdir(parents=True)
    (tmp_path / "oxford_pets/annotations/test.txt").write_text("# list\nEgyptian_Mau_201 12 1 6\nbeagle_9 5 2 1\n")
    assert labels(tmp_path, "oxford-pets", split="test") == ["Egyptian Mau", "Beagle"]
    (tmp_path / "food-101/meta").mkdir(parents=True)
    (tmp_path / "food-101/meta/train.txt").write_text("apple_pie/1005649\n")
    assert labels(tmp_path, "food101", split="train") == ["apple pie"]


def test_waterbirds_table(tmp_path: Path) -> None:
    folder = tmp_path / "waterbird_complete95_forest2water2"
    folder.mkdir()
    table = "img_id,img_filename,y,split,place,place_filename\n1,a/x.jpg,0,0,1,p\n2,b/y.jpg,1,2,0,q\n"
    (folder / "metadata.csv").write_text(table)
    items = get_dataset("waterbirds").images(tmp_path)
    assert [(item.label, item.domain) for item in items] == [("landbird", "water"), ("waterbird", "land")]
    assert labels(tmp_path, "waterbirds", split="test", domain="land") == ["waterbird"]
    (folder / "metadata.csv").write_text(table.replace(",1,2,0,", ",7,2,0,"))
    with pytest.raises(InputError, match=r"metadata\.csv"):
        get_dataset("waterbirds").images(tmp_path)


def test_classes_in_nested_folders(tmp_path: Path) -> None:
    touch(tmp_path / "sun397/SUN397/a/abbey/1.jpg", tmp_path / "sun397/SUN397/c/church/outdoor/1.jpg")
    assert labels(tmp_path, "sun397") == ["abbey", "church outdoor"]


def test_open_sets_need_no_classes(tmp_path: Path) -> None:
    touch(tmp_path / "iNaturalist/images/1.jpg", tmp_path / "imagenet-o/n01443537/1.jpg")
    assert labels(tmp_path, "inaturalist") == [None]
    assert labels(tmp_path, "imagenet-o") == [None]
    touch(tmp_path / "Places365/1.jpg")  # another data set, not a part of the subset
    with pytest.raises(DatasetMissingError):
        get_dataset("places").images(tmp_path)


def test_any_folder(tmp_path: Path) -> None:
    touch(tmp_path / "flat/cat/1.jpg", tmp_path / "flat/hot_dog/1.jpg")
    assert labels(tmp_path / "flat", "any-folder") == ["cat", "hot_dog"]
    touch(tmp_path / "deep/photo/cat/1.jpg", tmp_path / "deep/drawing/cat/1.jpg")
    items = get_dataset("folder").images(tmp_path / "deep")
    assert [(item.domain, item.label) for item in items] == [("drawing", "cat"), ("photo", "cat")]


def test_missing_data_set_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DatasetMissingError, match=r"PACS.*pacs.*project page"):
        get_dataset("pacs").images(tmp_path)
    with pytest.raises(InputError, match="is not a folder"):
        get_dataset("pacs").images(tmp_path / "absent")


def test_completeness(tmp_path: Path) -> None:
    for wnid in name_list("imagenet-10").keys:
        touch(*(tmp_path / f"ImageNet10/val/{wnid}/{i}.JPEG" for i in range(50)))
    [report] = check_root(tmp_path, ["imagenet-10"])
    assert report.status == "complete"
    assert report.counts["val"].found == report.counts["val"].expected == 500
    assert set(report.per_class.values()) == {50}
    last = tmp_path / f"ImageNet10/val/{wnid}/49.JPEG"
    last.rename(last.parents[1] / name_list("imagenet-10").keys[0] / "50.JPEG")  # as many images, but not of each class
    [report] = check_root(tmp_path, ["imagenet-10"])
    assert report.status == "differs"
    assert "2 classes have another number" in report.advice
    (last.parent / "48.JPEG").unlink()
    [report] = check_root(tmp_path, ["imagenet-10"])
    assert report.status == "partial"
    assert "val: 499 of 500 images" in report.advice


def test_listed_images_that_are_not_on_disk_do_not_count(tmp_path: Path) -> None:
    write_split(
        tmp_path / "dtd/split_zhou_DescribableTextures.json",
        {"train": [["banded/a.jpg", 0, "banded"], ["banded/b.jpg", 0, "banded"]], "val": [], "test": []},
    )
    touch(tmp_path / "dtd/images/banded/a.jpg")
    [report] = check_root(tmp_path, ["dtd"])
    assert report.status == "partial"
    assert report.images == 1
    assert {part: count.found for part, count in report.counts.items()} == {"train": 1, "val": 0, "test": 0}


def test_root_of_real_pictures(shared_data: Path) -> None:
    root = shared_data / "images"
    reports = {report.name: report for report in check_root(root)}
    partial = {name: report.images for name, report in reports.items() if report.status == "partial"}
    assert partial == {
        "caltech101": 816,
        "dtd": 240,
        "textures": 240,
        "food101": 180,
        "imagenet": 1000,
        "imagenet-superclass": 1000,
        "imagenet-10": 10,
        "imagenet-20": 20,
        "imagenet-100": 100,
        "oxford-pets": 296,
        "pacs": 1008,
    }
    assert Counter(report.status for report in reports.values())["complete"] == 0
    assert reports["vlcs"].status == "absent"
    assert unknown_folders(root) == ["intel_scenes", "shape16"]
    pacs = get_dataset("pacs").images(root, domain="photo")
    assert Counter(item.label for item in pacs) == dict.fromkeys(get_dataset("pacs").names, 36)
    assert len(get_dataset("imagenet").images(root, split="val", label="key")) == 1000


def test_documentation_names_every_data_set() -> None:
    text = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([a-z0-9-]+)` \| .* \| .* \| .* \|$", text, re.MULTILINE) == list_datasets()


# What cannot be read does not hide the rest.


def test_locked_and_broken_folders_of_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(
        *(tmp_path / f"pacs/{domain}/dog/1.jpg" for domain in ("photo", "sketch")),
        tmp_path / "pacs/photo/no class/1.jpg",
    )
    (tmp_path / "pacs/photo/horse").symlink_to("nowhere")
    (tmp_path / "pacs/photo/dog/2.jpg").symlink_to("2.jpg")
    (tmp_path / "loop").symlink_to("loop")
    lock(tmp_path / "pacs/sketch", monkeypatch)
    found = {
        Path(item.id).relative_to(tmp_path / "pacs").as_posix(): (item.label, item.domain, item.problem is not None)
        for item in get_dataset("pacs").images(tmp_path)
    }
    assert found == {
        "photo/dog/1.jpg": ("dog", "photo", False),
        "photo/dog/2.jpg": ("dog", "photo", True),
        "photo/horse": ("horse", "photo", True),
        "sketch": (None, "sketch", True),
    }
    [report] = check_root(tmp_path, ["pacs"])
    assert report.status == "partial"
    assert report.counts["photo"].found == report.images == 1
    assert report.counts["sketch"].found == 0
    assert unknown_folders(tmp_path) == []


def test_lists_that_cannot_be_read(tmp_path: Path) -> None:
    split = tmp_path / "oxford_pets" / "split_zhou_OxfordPets.json"
    touch(split)
    for text in ("", "[" * 100_000, '{"train": [[1]]}', '{"train": 3}'):
        split.write_text(text)
        with pytest.raises(InputError, match="CoOp split file"):
            get_dataset("oxford-pets").images(tmp_path)
    split.unlink()
    lists = tmp_path / "oxford_pets" / "annotations" / "trainval.txt"
    touch(lists)
    lists.write_bytes(b"Abyssinian_1 \xff\xfe\n")
    with pytest.raises(InputError, match=r"trainval\.txt"):
        get_dataset("oxford-pets").images(tmp_path)


@pytest.mark.parametrize("root", ["a\0b", "a\ud800", "~nobody-of-this-name", "x" * 5000])
def test_roots_that_cannot_be(root: str) -> None:
    for call in (lambda: check_root(root), lambda: get_dataset("pacs").images(root)):
        with pytest.raises(InputError, match="is not a folder"):
            call()
