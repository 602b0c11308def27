"""Which images a protocol takes: shots of several domains, splits with limits, and validation images."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from deltaenergy.benchmarks.plan import plan
from deltaenergy.benchmarks.protocol import get_protocol
from deltaenergy.benchmarks.rows import parse_rows
from deltaenergy.benchmarks.sets import DataRoot, MissingData, draw_shots, resolve
from deltaenergy.benchmarks.spec import BenchmarkSpec, SetSpec, load_spec, parse_spec
from deltaenergy.data.items import ImageItem
from deltaenergy.evaluation.results import Group

CLASSES = ["a", "b", "c", "d"]
DOMAINS = ["ink", "oil", "wax"]


def pool(per_class: int = 40) -> list[ImageItem]:
    """Images of four classes in three domains; the last class has few of one domain."""
    return [
        ImageItem(f"{domain}/{label}/{i}", lambda: None, label, domain)  # type: ignore[arg-type, return-value]
        for domain in DOMAINS
        for label in CLASSES
        for i in range(per_class if (domain, label) != ("wax", "d") else 2)
    ]


def counts(items: list[ImageItem]) -> Counter[tuple[str | None, str | None]]:
    return Counter((item.label, item.domain) for item in items)


def test_balanced_draws_the_same_number_of_each_class_and_domain() -> None:
    three = [item for item in pool() if item.label != "d"]
    found = draw_shots(three, CLASSES[:3], 16, 1, "balanced", as_released=False)
    assert set(counts(found.items).values()) == {5} and len(found.items) == 3 * 3 * 5
    assert [CLASSES[label] for label in found.labels] == [item.label for item in found.items]


def test_pooled_draws_as_many_of_each_class_whatever_the_domains() -> None:
    found = draw_shots(pool(), CLASSES, 16, 1, "pooled", as_released=False)
    assert Counter(item.label for item in found.items) == dict.fromkeys(CLASSES, 16)
    assert len(set(counts(found.items).values())) > 1
    assert all(item.domain for item in found.items)


def test_as_released_a_class_draws_from_all_classes_of_a_domain() -> None:
    """7 · 3 · 5 = 105 draws in PACS: here 4 classes draw 5 of each of 3 domains, and get what comes."""
    found = draw_shots(pool(), CLASSES, 16, 1, "balanced", as_released=True)
    assert Counter(item.domain for item in found.items) == dict.fromkeys(DOMAINS, 4 * 5)
    assert len(set(Counter(item.label for item in found.items).values())) > 1
    assert [CLASSES[label] for label in found.labels] == [item.label for item in found.items]
    again, other = (draw_shots(pool(), CLASSES, 16, seed, "balanced", as_released=True) for seed in (1, 2))
    assert found.hash == again.hash != other.hash
    # It is an accident of the balanced draw alone.
    spread = [draw_shots(pool(), CLASSES, 16, 1, "spread", as_released=flag).hash for flag in (False, True)]
    assert spread[0] == spread[1]


def folders(root: Path, splits: dict[str, int], classes: tuple[str, ...] = ("banded", "dotted")) -> DataRoot:
    """DTD as its own lists have it, with so many images of each split and class."""
    for split, count in splits.items():
        names = [f"{label}/{label}_{split}{i}.jpg" for label in classes for i in range(count)]
        for name in names:
            path = root / "dtd" / "images" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
        (root / "dtd" / "labels").mkdir(exist_ok=True)
        (root / "dtd" / "labels" / f"{split}1.txt").write_text("\n".join(names))
    return DataRoot(root)


OPEN = SetSpec("dtd", "dtd", splits={"train": 16, "val": 4, "test": None}, per_class=100)


def test_an_open_set_takes_so_many_of_each_split(tmp_path: Path) -> None:
    data = folders(tmp_path, {"train": 20, "val": 20, "test": 30})
    items = resolve(OPEN, Group.OPEN, [], data, 1, None).items
    assert Counter((item.label, item.id.split("_")[-1].rstrip("0123456789.jpg")) for item in items) == {
        (label, split): count
        for label in ("banded", "dotted")
        for split, count in (("train", 16), ("val", 4), ("test", 30))
    }


def test_a_cap_holds_for_all_splits_together_and_a_missing_split_gives_none(tmp_path: Path) -> None:
    data = folders(tmp_path, {"train": 20, "test": 120})
    items = resolve(OPEN, Group.OPEN, [], data, 1, None).items
    assert Counter(item.label for item in items) == {"banded": 100, "dotted": 100}
    with pytest.raises(MissingData, match="DTD"):
        resolve(OPEN, Group.OPEN, [], DataRoot(tmp_path / "dtd"), 1, None)


TEXTURES = """
title: Textures
methods: [msp]
seeds: [1]
shots: 3
cases:
  - name: textures
    dataset: dtd
    train: {split: train}
    closed:
      test: {split: test}
"""


def validated(spec: BenchmarkSpec, data: DataRoot) -> Counter[str]:
    """Of how many images of each split validation images are, for one class."""
    (case,), _ = plan(spec, data, parse_rows(["coop/mcm"]), [1], None)
    assert case.train is not None
    trained = {item.id for item in case.train.items}
    assert not trained & {item.id for item in case.validation}
    of_one = [item.id for item in case.validation if item.label == "banded"]
    return Counter("val" if "_val" in name else "train" if "_train" in name else "test" for name in of_one)


def test_validation_images_are_of_the_split_that_the_protocol_names(tmp_path: Path) -> None:
    data = folders(tmp_path, {"train": 20, "val": 5, "test": 5}, ("banded", "dotted"))
    text = TEXTURES.replace("    dataset: dtd\n", "    dataset: dtd\n    classes: two\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deltaenergy.benchmarks.spec.splits", lambda: {"two": ["banded", "dotted"]})
        spec = parse_spec(text, "textures", "textures.yaml")
        found = {name: validated(get_protocol(name).applied_to(spec), data) for name in ("standard", "paper", "croft")}
        tested = parse_spec(text.replace("{split: test}", "{split: val}"), "textures", "textures.yaml")
        fallen_back = validated(get_protocol("paper").applied_to(tested), data)
    assert found == {"standard": {"train": 3}, "paper": {"val": 3}, "croft": {"test": 3}}
    # A validation split that is tested is none to choose on, as ImageNet's.
    assert fallen_back == {"train": 3}


def test_croft_takes_the_releases_sets_in_setup2() -> None:
    spec = get_protocol("croft").applied_to(load_spec("setup2"))
    plain = load_spec("setup2")
    for case, before in zip(spec.cases, plain.cases):
        assert case.train is not None and before.train is not None
        assert case.train.draw == ("balanced" if case.group == "pacs" else "pooled")
        assert case.train.domains == before.train.domains
        assert [one.name for one in case.open] == ["dtd", "food101", "caltech101"]
        for one in case.open:
            assert one.splits == {"train": 16, "val": 4, "test": None} and one.per_class == 100
        assert case.open[2].without == f"caltech101-removed-by-croft/{case.group}"
        assert case.closed == before.closed
    assert (spec.validation.source, spec.validation.per_class) == ("val", 16)
