"""Names and kinds by WordNet: known words, and the script on a database of six synsets."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

from deltaenergy.scores.negatives.taxonomy import proper_nouns, subcategories, taxonomy

SCRIPT = Path(__file__).resolve().parents[3] / "training/wordnet/make_taxonomy.py"
# wnstats(7) of WordNet 3.0.
NOUN_SYNSETS, NOUNS = 82_115, 117_798

DATABASE = """\
  1 This software and database is being provided to you, the LICENSEE
00000100 03 n 01 entity 0 001 ~ 00000200 n 0000 | that which is
00000200 05 n 02 dog 0 domestic_dog 0 003 @ 00000100 n 0000 #m 00000600 n 0000 ~ 00000300 n 0000 | a pet @ home
00000300 05 n 01 Poodle 0 002 @ 00000200 n 0000 ~i 00000400 n 0000 | curly
00000400 05 n 01 Rex 0 001 @i 00000300 n 0000 | a poodle
00000500 06 n 02 Rex 1 leash 0 001 @ 00000100 n 0000 | a rope
00000600 14 n 01 pack 0 001 @ 00000100 n 0000 | many dogs
"""


def test_the_table_is_wordnets() -> None:
    table = taxonomy()
    assert len(table.words) == NOUN_SYNSETS
    # Lower case makes one word of a few ("Turkey", "turkey").
    assert 0.97 * NOUNS < len(table.synsets) <= NOUNS
    assert [words for words, kinds in zip(table.words, table.kinds, strict=True) if "entity" in words and kinds]


def test_names_are_names_in_every_sense() -> None:
    names = proper_nouns()
    assert {"costa rica", "einstein"} <= names
    # The country is an instance, the bird is not; Paris is a genus of plants too.
    assert not names & {"turkey", "paris", "dog", "guitar", "daisy", "country"}


def test_kinds_lie_below_their_class_in_any_sense() -> None:
    dogs = subcategories(["dog"])
    assert {"dog", "domestic dog", "poodle", "toy poodle", "frank", "vienna sausage"} <= dogs  # also a hot dog
    assert not dogs & {"cat", "canine", "animal", "wolf"}
    assert "english daisy" in subcategories(["Daisy"])
    # NegRefine's own example. WordNet has it as a flower, but as no daisy: here a language model sees more.
    assert "african daisy" not in subcategories(["daisy"]) and "african daisy" in subcategories(["flower"])
    assert {"whooping crane", "davit"} <= subcategories(["crane"])  # the bird and the machine
    assert "acoustic guitar" in subcategories(["guitar (instrument)"])
    assert subcategories(["no such word", ""]) == frozenset()
    assert subcategories(["dog", "guitar"]) == dogs | subcategories(["guitar"])


def test_the_script_reads_the_database(tmp_path: Path) -> None:
    (tmp_path / "data.noun").write_text(DATABASE, encoding="utf-8")
    out = tmp_path / "table.gz"
    subprocess.run([sys.executable, str(SCRIPT), "--wordnet", str(tmp_path), "--out", str(out)], check=True)
    assert gzip.decompress(out.read_bytes()).decode("utf-8").splitlines() == [
        "entity\t",
        "dog|domestic dog\t0",
        "poodle\t1",
        "rex\t2\ti",
        "rex|leash\t0",
        "pack\t0",
    ]
