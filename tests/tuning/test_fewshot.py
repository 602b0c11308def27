"""Few-shot sampling: balanced, repeatable, and clear about what is missing."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaenergy.data.items import ImageItem
from deltaenergy.errors import InputError
from deltaenergy.tuning.fewshot import sample_few_shots


def pictures(counts: dict[tuple[str, str | None], int]) -> list[ImageItem]:
    return [
        ImageItem(f"{domain}/{label}/{i}", b"", label, domain)
        for (label, domain), count in counts.items()
        for i in range(count)
    ]


def test_takes_the_same_images_for_a_seed_whatever_the_order_and_the_other_classes() -> None:
    items = pictures({("dog", None): 20, ("cat", None): 20, ("bird", None): 20})
    first = sample_few_shots(items, ["dog", "cat", "bird"], 5, seed=3)
    again = sample_few_shots(items[::-1], ["dog", "cat", "bird"], 5, seed=3)
    fewer = sample_few_shots(items[:40], ["dog", "cat"], 5, seed=3)
    other = sample_few_shots(items, ["dog", "cat", "bird"], 5, seed=4)
    assert first.items == again.items and first.hash == again.hash
    assert first.items[:10] == fewer.items
    assert {item.id for item in first.items} != {item.id for item in other.items}
    assert Counter(first.labels) == {0: 5, 1: 5, 2: 5}
    assert len({item.id for item in first.items}) == 15


def test_shots_are_spread_over_domains_and_the_odd_ones_alternate() -> None:
    domains = ["art", "photo", "sketch"]
    items = pictures({(label, domain): 9 for label in ("dog", "cat", "bird") for domain in domains})
    sample = sample_few_shots(items, ["dog", "cat", "bird"], 4, seed=1)
    per_pair = Counter((label, item.domain) for label, item in zip(sample.labels, sample.items))
    assert all(per_pair[k, domain] in (1, 2) for k in range(3) for domain in domains)
    assert Counter(item.domain for item in sample.items) == dict.fromkeys(domains, 4)


def test_other_domains_fill_up_where_one_has_too_few() -> None:
    items = pictures({("dog", "art"): 1, ("dog", "photo"): 9, ("cat", "art"): 9, ("cat", "photo"): 9})
    sample = sample_few_shots(items, ["dog", "cat"], 6, seed=1)
    assert Counter((sample.classes[k], i.domain) for k, i in zip(sample.labels, sample.items)) == {
        ("dog", "art"): 1,
        ("dog", "photo"): 5,
        ("cat", "art"): 3,
        ("cat", "photo"): 3,
    }


@given(
    counts=st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=4), min_size=1, max_size=5),
    shots=st.integers(1, 20),
    seed=st.integers(0, 2**31),
)
@pytest.mark.filterwarnings("ignore:Fewer than")
def test_each_class_gives_its_shots_or_all_it_has(counts: list[list[int]], shots: int, seed: int) -> None:
    table = {(f"class {k}", f"domain {d}"): n for k, row in enumerate(counts) for d, n in enumerate(row)}
    classes = [f"class {k}" for k in range(len(counts))]
    if any(sum(row) == 0 for row in counts):
        with pytest.raises(InputError, match="no training image"):
            sample_few_shots(pictures(table), classes, shots, seed)
        return
    sample = sample_few_shots(pictures(table), classes, shots, seed)
    found = Counter(sample.labels)
    for k, row in enumerate(counts):
        assert found[k] == min(shots, sum(row))
        per_domain = Counter(i.domain for label, i in zip(sample.labels, sample.items) if label == k)
        taken = [(per_domain[f"domain {d}"], n) for d, n in enumerate(row) if n]
        # A domain may have given less than another only if it has no more, apart from one odd image.
        assert all(a >= b - 1 or a == n for a, n in taken for b, _ in taken)


def test_too_few_images_are_all_used_with_a_warning() -> None:
    items = pictures({("dog", None): 3, ("cat", None): 9})
    with pytest.warns(UserWarning, match=r"Fewer than 8.*'dog' \(3\)"):
        sample = sample_few_shots(items, ["dog", "cat"], 8, seed=1)
    assert Counter(sample.labels) == {0: 3, 1: 8}


def test_clear_errors() -> None:
    items = pictures({("dog", None): 3})
    with pytest.raises(InputError, match="no training image of 'cat'"):
        sample_few_shots(items, ["dog", "cat"], 2, seed=1)
    with pytest.raises(InputError, match=r"'dog'.*'dot'"):
        sample_few_shots(items, ["dot", "cat"], 2, seed=1)
    with pytest.raises(InputError, match="has no class label"):
        sample_few_shots([ImageItem("a.png", b"")], ["dog"], 2, seed=1)
    with pytest.raises(InputError, match="shots must be at least 1"):
        sample_few_shots(items, ["dog"], 0, seed=1)


def test_the_record_tells_which_images_were_drawn() -> None:
    items = pictures({("dog", "art"): 3, ("cat", "art"): 3})
    record = sample_few_shots(items, ["dog", "cat"], 1, seed=7).record()
    assert record["shots"] == 1 and record["seed"] == 7
    assert [image["class"] for image in record["images"]] == ["dog", "cat"]
    assert all(image["domain"] == "art" and image["id"] in {i.id for i in items} for image in record["images"])
