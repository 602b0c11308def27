"""Make the word lists of the negative-label scores from the WordNet 3.0 database files.

    python training/wordnet/make_pools.py [--wordnet /usr/share/wordnet]

Debian's package `wordnet-base` carries the database. Each synset line of `data.noun` and `data.adj` names its
lexicographer file by number (see wndb(5) and lexnames(5)) and lists its words. From each synset the first word is
taken: its adjective marker, such as `(p)`, is removed, letters become lower case and underscores spaces. Every
lexicographer file becomes one sorted list without repetition; which lists make a pool is decided in
`deltaenergy.scores.negatives.pools`.

The output is text, one word per line, each list headed by `# file`, compressed without a time stamp so that equal
input gives equal bytes.
"""

from __future__ import annotations

import argparse
import gzip
import re
from collections.abc import Iterator
from pathlib import Path

# lexnames(5): the number of a lexicographer file in the database, for the nouns and adjectives.
FILES = {
    0: "adj.all",
    1: "adj.pert",
    44: "adj.ppl",
    3: "noun.Tops",
    4: "noun.act",
    5: "noun.animal",
    6: "noun.artifact",
    7: "noun.attribute",
    8: "noun.body",
    9: "noun.cognition",
    10: "noun.communication",
    11: "noun.event",
    12: "noun.feeling",
    13: "noun.food",
    14: "noun.group",
    15: "noun.location",
    16: "noun.motive",
    17: "noun.object",
    18: "noun.person",
    19: "noun.phenomenon",
    20: "noun.plant",
    21: "noun.possession",
    22: "noun.process",
    23: "noun.quantity",
    24: "noun.relation",
    25: "noun.shape",
    26: "noun.state",
    27: "noun.substance",
    28: "noun.time",
}
OUTPUT = Path(__file__).resolve().parents[2] / "src/deltaenergy/scores/negatives/data/wordnet-3.0.txt.gz"
MARKER = re.compile(r"\((?:a|p|ip)\)$")


def first_words(data: Path) -> Iterator[tuple[str, str]]:
    """The lexicographer file and the first word of every synset in a database file."""
    for line in data.read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):  # the licence at the head of the file
            continue
        _, file, _, _, word, *_ = line.split(" ", 5)
        yield FILES[int(file)], MARKER.sub("", word).replace("_", " ").lower()


def make_lists(wordnet: Path) -> dict[str, list[str]]:
    """Each lexicographer file's words, sorted and without repetition."""
    lists: dict[str, set[str]] = {name: set() for name in FILES.values()}
    for part_of_speech in ("adj", "noun"):
        for name, word in first_words(wordnet / f"data.{part_of_speech}"):
            lists[name].add(word)
    return {name: sorted(lists[name]) for name in sorted(lists)}


def main() -> None:
    """Write the compressed lists and print how many words each holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"), help="folder with data.noun")
    parser.add_argument("--out", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    lists = make_lists(arguments.wordnet)
    text = "".join(f"# {name}\n" + "".join(f"{word}\n" for word in words) for name, words in lists.items())
    arguments.out.write_bytes(gzip.compress(text.encode("utf-8"), compresslevel=9, mtime=0))
    for name, words in lists.items():
        print(f"{name:<20} {len(words):>6}")
    print(f"{arguments.out}: {arguments.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
