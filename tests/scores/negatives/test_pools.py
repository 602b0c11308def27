"""The word lists: how many, by which rule, and what a user's own list may look like."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from deltaenergy.errors import InputError
from deltaenergy.scores.negatives.pools import (
    CSP_EXCLUDED,
    NEGLABEL_EXCLUDED,
    lexicographer_lists,
    read_words,
    wordnet_pool,
)

SCRIPT = Path(__file__).resolve().parents[3] / "training/wordnet/make_pools.py"
# wnstats(7) of WordNet 3.0: no file can have more words than its part of speech has synsets.
SYNSETS = {"noun": 82_115, "adj": 18_156}


def test_all_noun_and_adjective_files_are_there() -> None:
    names = list(lexicographer_lists())
    assert len([name for name in names if name.startswith("noun.")]) == 26
    assert [name for name in names if name.startswith("adj.")] == ["adj.all", "adj.pert", "adj.ppl"]
    for kind, synsets in SYNSETS.items():
        assert sum(len(words) for name, words in lexicographer_lists().items() if name.startswith(kind)) < synsets


def test_words_follow_the_rule() -> None:
    for words in lexicographer_lists().values():
        assert list(words) == sorted(set(words))
        assert all(word == word.lower().strip() and "_" not in word and word for word in words)
        assert not any(re.search(r"\((a|p|ip)\)$", word) for word in words)


def test_known_words_stand_in_their_files() -> None:
    lists = lexicographer_lists()
    # First words of synsets; the second words of the same synsets ("motorcar", "canis familiaris") are left out.
    assert {"car", "hot-air balloon"} <= set(lists["noun.artifact"])
    assert "motorcar" not in lists["noun.artifact"]
    assert "dog" in lists["noun.animal"]
    assert "entity" in lists["noun.Tops"]
    assert {"able", "asleep"} <= set(lists["adj.all"])  # in the database "asleep(p)"


@pytest.mark.parametrize(
    ("excluded", "nouns", "adjectives"),
    [(NEGLABEL_EXCLUDED, 56_788, 14_006), (CSP_EXCLUDED, 46_446, 11_047)],
)
def test_pools_have_the_documented_size(excluded: tuple[str, ...], nouns: int, adjectives: int) -> None:
    pool = wordnet_pool(excluded)
    assert (len(pool.nouns), len(pool.adjectives)) == (nouns, adjectives)
    assert len(set(pool.words)) == nouns + adjectives


def test_a_word_of_both_kinds_is_an_adjective_and_excluded_files_count_for_nothing() -> None:
    pool = wordnet_pool(NEGLABEL_EXCLUDED)
    lists = lexicographer_lists()
    both = set(lists["adj.all"]) & set(lists["noun.artifact"])
    assert both
    assert both <= set(pool.adjectives)
    assert not both & set(pool.nouns)
    others = {word for name, words in lists.items() if name not in NEGLABEL_EXCLUDED for word in words}
    assert set(pool.words) == others
    assert "poodle" in lists["noun.animal"] and "poodle" not in pool.words


def test_an_unknown_file_is_named() -> None:
    with pytest.raises(InputError, match=r"noun\.animals.*'noun\.animal'"):
        wordnet_pool(["noun.animals"])


def test_the_licence_travels_with_the_data() -> None:
    data = resources.files("deltaenergy.scores.negatives").joinpath("data")
    assert "Princeton University" in data.joinpath("LICENSE.wordnet.txt").read_text(encoding="utf-8")
    assert len(data.joinpath("wordnet-3.0.txt.gz").read_bytes()) < 1_000_000


def test_the_script_reads_the_database_format(tmp_path: Path) -> None:
    (tmp_path / "data.noun").write_text(
        "  1 This software and database is provided\n"
        "00001740 03 n 01 entity 0 003 ~ 00001930 n 0000 | that which is\n"
        "02084071 05 n 03 Hot_Dog 0 domestic_dog 0 Canis_familiaris 0 001 @ 0 n 0 | a dog (p)\n"
        "02084072 05 n 01 hot_dog 1 000 | the same word again\n"
    )
    (tmp_path / "data.adj").write_text(
        "00001740 00 a 01 able 0 000 | having means\n00002000 44 s 02 fit(p) 0 set(a) 1 000 | prepared\n"
    )
    command = [sys.executable, str(SCRIPT), "--wordnet", str(tmp_path), "--out", str(tmp_path / "out.gz")]
    subprocess.run(command, check=True, capture_output=True)
    lines = gzip.decompress((tmp_path / "out.gz").read_bytes()).decode().splitlines()
    assert lines[lines.index("# noun.animal") + 1 : lines.index("# noun.artifact")] == ["hot dog"]
    assert lines[lines.index("# adj.ppl") + 1 : lines.index("# noun.Tops")] == ["fit"]
    assert lines[: lines.index("# adj.pert")] == ["# adj.all", "able"]


def test_a_users_list(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_bytes("\ufeffapple\n\n  pear tree \napple\n".encode())
    assert read_words(path).nouns == ("apple", "pear tree")
    assert read_words(path).adjectives == ()


@pytest.mark.parametrize(
    ("content", "message"), [(None, "does not exist"), (b"\n \n", "has no name"), (b"\xff\xfe\x00", "UTF-8")]
)
def test_a_users_list_that_cannot_be_used(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "words.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_words(path)
