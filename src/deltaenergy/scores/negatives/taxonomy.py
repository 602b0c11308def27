"""Which words are names, and which are kinds of a class, by WordNet 3.0's pointers between nouns.

    proper noun     every synset that the word heads is an instance of something ("costa rica" of "country")
    subcategory     the word stands in a synset at or below one in which a class's name stands ("poodle" of "dog")

A word or a class with several senses counts in all of them: "crane" is a bird and a machine. The table is made by
`training/wordnet/make_taxonomy.py`.
"""

from __future__ import annotations

import functools
import gzip
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

_BRACKETS = re.compile(r"\s*\([^)]*\)")


@dataclass(frozen=True)
class Taxonomy:
    """WordNet's nouns: row i of each list belongs to synset i.

    Attributes:
        words: the words of each synset, the first of which heads it.
        kinds: the synsets directly below each.
        synsets: the synsets in which a word stands.
        proper: words that head instances alone.
    """

    words: list[tuple[str, ...]]
    kinds: list[list[int]]
    synsets: dict[str, list[int]]
    proper: frozenset[str]


@functools.cache
def taxonomy() -> Taxonomy:
    """The table, read once."""
    folder = resources.files("deltaenergy.scores.negatives")
    packed = folder.joinpath("data/wordnet-3.0-taxonomy.txt.gz").read_bytes()
    lines = [line.split("\t") for line in gzip.decompress(packed).decode("utf-8").splitlines()]
    words = [tuple(names.split("|")) for names, *_ in lines]
    kinds: list[list[int]] = [[] for _ in lines]
    synsets: dict[str, list[int]] = defaultdict(list)
    heads: dict[str, list[bool]] = defaultdict(list)
    for number, (_, parents, *marks) in enumerate(lines):
        for parent in parents.split():
            kinds[int(parent)].append(number)
        for word in words[number]:
            synsets[word].append(number)
        heads[words[number][0]].append("i" in marks)
    proper = frozenset(word for word, instances in heads.items() if all(instances))
    return Taxonomy(words, kinds, dict(synsets), proper)


def proper_nouns() -> frozenset[str]:
    """Words that name single things, in lower case."""
    return taxonomy().proper


def subcategories(names: Iterable[str]) -> frozenset[str]:
    """Every word at or below a class of this name, in lower case; a name that WordNet does not have adds nothing."""
    table = taxonomy()
    open_synsets = [synset for name in names for synset in table.synsets.get(_plain(name), ())]
    seen: set[int] = set()
    while open_synsets:
        synset = open_synsets.pop()
        if synset not in seen:
            seen.add(synset)
            open_synsets += table.kinds[synset]
    return frozenset(word for synset in seen for word in table.words[synset])


def _plain(name: str) -> str:
    """A class name as WordNet writes words: lower case, spaces, without what stands in brackets."""
    return " ".join(_BRACKETS.sub("", name).replace("_", " ").lower().split())
