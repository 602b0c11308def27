"""Benchmarks as data: they load, refer to what exists, hold the reference's splits, and say clearly what is wrong."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from deltaenergy.benchmarks.spec import benchmark_names, class_list, load_spec, parse_spec, splits
from deltaenergy.benchmarks.tables import paper_tables, published_tables
from deltaenergy.data.catalogue.dataset import get_dataset
from deltaenergy.errors import InputError

EXPECTED = {
    "ablation-c",
    "clip-11",
    "concept-shift",
    "conventional",
    "cost",
    "hard-pairs",
    "hard-splits",
    "mini",
    "openood-v1.5",
    "setup1",
    "setup2",
}
MINIMAL = """
title: Test
methods: [msp]
cases:
  - name: one
    dataset: pacs
    closed:
      test: {}
"""


def test_all_benchmarks_are_there() -> None:
    assert set(benchmark_names()) == EXPECTED


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_specs_refer_to_known_data_sets_tables_and_methods(name: str) -> None:
    from deltaenergy.benchmarks.rows import parse_rows

    spec = load_spec(name)
    for case in spec.cases:
        for images in case.image_sets():
            if images.dataset == "drawn":
                continue
            dataset = get_dataset(images.dataset)
            if images.domains:
                assert dataset.domains is not None
                assert set(images.domains) <= set(dataset.domains)
            if case.classes != "all" and images.classes == "closed":
                keys = {entry.key for entry in get_dataset(case.dataset).classes}
                for seed in spec.seeds:
                    assert set(class_list(case.classes.replace("{seed}", str(seed)))) <= keys
            if images.without:
                assert set(class_list(images.without)) <= {entry.key for entry in dataset.classes}
    assert set(spec.tables) <= {*paper_tables(), *published_tables()}
    assert parse_rows(spec.methods)


def test_leave_one_domain_out_trains_on_the_others_and_tests_on_the_one() -> None:
    cases = {case.name: case for case in load_spec("setup2").cases}
    sketch = cases["pacs/sketch"]
    assert sketch.group == "pacs"
    assert sketch.closed[0].domains == ("sketch",)
    assert sketch.train is not None
    assert sketch.train.domains == ("art_painting", "cartoon", "photo")
    assert len(cases) == 8


def test_splits_equal_the_reference(shared_data: Path) -> None:
    reference_file = shared_data.parent / "reference" / "splits.json"
    if not reference_file.is_file():
        pytest.skip("no reference splits beside the test data")
    reference = json.loads(reference_file.read_text(encoding="utf-8"))
    with (reference_file.parent / "imagenet1k.csv").open(encoding="utf-8") as file:
        name_of = {row["wnid"]: row["name"] for row in csv.DictReader(file)}
    ours = splits()
    for seed, names in reference["setup1_closed_names_by_seed"].items():
        assert [name_of[wnid] for wnid in ours["setup1"][seed]] == names
    assert ours["hard-splits"] == reference["hard_splits"]
    for count in (10, 20, 100):
        assert ours[f"imagenet{count}"] == reference[f"imagenet{count}"]
    assert ours["caltech101-removed"] == reference["caltech101_removed"]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_setup1_classes_are_numpys_draw(seed: int) -> None:
    wnids = [entry.key for entry in get_dataset("imagenet").classes]
    drawn = np.random.RandomState(seed).choice(wnids, 400, replace=False)
    assert class_list(f"setup1/{seed}") == drawn.tolist()


def test_hard_splits_have_the_papers_sizes_and_do_not_overlap() -> None:
    sizes = [(116, 166), (30, 55), (151, 164), (100, 900)]
    for number, size in enumerate(sizes, start=1):
        inside, outside = class_list(f"hard-splits/split{number}/id"), class_list(f"hard-splits/split{number}/ood")
        assert (len(set(inside)), len(set(outside))) == size
        assert not set(inside) & set(outside)


def test_an_unknown_benchmark_suggests_the_near_one() -> None:
    with pytest.raises(InputError, match="Did you mean 'setup2'"):
        load_spec("setup_2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("methods: [msp]", "method: [msp]"), r"'method'.*'methods'"),
        (("methods: [msp]", "methods: msp"), r"methods is 'msp'.* a list"),
        (("title: Test", ""), "'title' is missing"),
        (("test: {}", "test: {per_class: 0}"), r"closed\.test\.per_class is 0"),
        (("test: {}", "test: {kind: shift}"), r"kind is 'shift'.*'shifted'"),
        (("test: {}", "test: {without: caltech101-removed/pac}"), "Did you mean 'pacs'"),
        (("dataset: pacs", "dataset: pacs\n    classes: setup1/{seed}x"), "no list"),
        (("test: {}", "- test"), r"closed is a list.* named"),
        (("title: Test", "title: [unclosed"), "not valid YAML"),
        (("title: Test", "title: Test\ntemplate: a photo"), "exactly one"),
    ],
)
def test_mistakes_in_a_spec_are_named(change: tuple[str, str], message: str) -> None:
    with pytest.raises(InputError, match=f"mine.yaml.*{message}|{message}"):
        parse_spec(MINIMAL.replace(*change), "mine", "mine.yaml")


def test_a_users_own_file_is_a_benchmark(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(MINIMAL)
    spec = load_spec(str(file))
    assert (spec.name, spec.cases[0].closed[0].classes) == ("mine", "closed")
    with pytest.raises(InputError, match="does not exist"):
        load_spec(str(tmp_path / "other.yaml"))


def test_the_hash_changes_with_images_and_not_with_words() -> None:
    base = parse_spec(MINIMAL, "mine", "mine.yaml").hash
    assert parse_spec(MINIMAL.replace("Test", "Other"), "mine", "mine.yaml").hash == base
    assert parse_spec(MINIMAL.replace("test: {}", "test: {per_class: 3}"), "mine", "mine.yaml").hash != base
