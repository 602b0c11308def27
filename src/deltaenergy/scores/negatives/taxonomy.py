"""Which words are names, and which are kinds of a class, by WordNet 3.0's pointers between nouns.

    proper noun     every synset that the word heads is an instance of something ("costa rica" of "country")
    subcategory     the word is in a synset at or below one with a class's name ("poodle" of "dog")

A word or a class with several senses counts in all of them: "crane" is a bird and a machine; "crane bird" is the bird.
Case, spaces, hyphens, underscores, accents, articles, brackets and plurals make no difference. The table is made by
`training/wordnet/make_taxonomy.py`.
"""

from __future__ import annotations

import functools
import gzip
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

_BRACKETS = re.compile(r"\(([^)]*)\)")
_ARTICLE = re.compile(r"^(?:an?|the)\s+", re.IGNORECASE)
_ALTERNATIVES = re.compile(r"[,;/|]|\sor\s", re.IGNORECASE)
# Endings of plurals and of their singulars; a name is looked up under all that fit. "grass" is not a plural.
_PLURALS = (
    ("children", "child"), ("people", "person"), ("mice", "mouse"), ("geese", "goose"), ("teeth", "tooth"),
    ("feet", "foot"), ("men", "man"), ("ies", "y"), ("ves", "f"), ("ves", "fe"), ("ches", "ch"), ("shes", "sh"),
    ("sses", "ss"), ("xes", "x"), ("zes", "z"), ("oes", "o"), ("ses", "s"), ("s", ""),
)  # fmt: skip
_SINGULAR = "ss"


@dataclass(frozen=True)
class Taxonomy:
    """WordNet's nouns: row i of each list belongs to synset i.

    Attributes:
        words: the words of each synset, the first of which heads it.
        kinds: the synsets directly below each.
        proper: words that head only instances.
    """

    words: list[tuple[str, ...]]
    kinds: list[list[int]]
    proper: frozenset[str]


@functools.cache
def taxonomy() -> Taxonomy:
    folder = resources.files("deltaenergy.scores.negatives")
    packed = folder.joinpath("data/wordnet-3.0-taxonomy.txt.gz").read_bytes()
    lines = gzip.decompress(packed).decode("utf-8").splitlines()
    words: list[tuple[str, ...]] = []
    kinds: list[list[int]] = [[] for _ in lines]
    instances, others = set[str](), set[str]()
    for number, line in enumerate(lines):
        names, parents, *marks = line.split("\t")
        words.append(tuple(names.split("|")))
        for parent in parents.split():
            kinds[int(parent)].append(number)
        (instances if "i" in marks else others).add(words[-1][0])
    return Taxonomy(words, kinds, proper=frozenset(instances - others))


def proper_nouns() -> frozenset[str]:
    """Words that name single things, in lower case."""
    return taxonomy().proper


def subcategories(names: Iterable[str]) -> frozenset[str]:
    """Every word at or below a class of this name, in lower case; a name that WordNet does not have adds nothing."""
    words, below = taxonomy().words, _below(synset for name in names for synset in senses(name))
    return frozenset(word for synset in below for word in words[synset])


def own_words(
    words: Iterable[str], classes: Iterable[str], meanings: Mapping[str, Sequence[int]] | None = None
) -> dict[str, str]:
    """The words that name a class, a synonym or a kind of one, each with the class that it belongs to.

    They must not compete with the classes: an image of a poodle is an image of a dog. Broader words ("animal") may. A
    name that WordNet does not have removes only itself.

    Args:
        words: candidates.
        classes: the class names.
        meanings: the synsets of words whose meaning is known; others count in all their senses.
    """
    named: dict[str, str] = {}
    below: dict[int, str] = {}
    for name in dict.fromkeys(classes):
        parts = _alternatives(name)
        for key in (key for part in parts for key in _keys(part)):
            named.setdefault(key, name)
        for synset in _below(synset for part in parts for synset in senses(part)):
            below.setdefault(synset, name)
    owner_of: dict[str, str] = {}
    for word in words:
        parts = [*_alternatives(word), *_BRACKETS.findall(word)]
        synsets = (meanings or {}).get(word) or [synset for part in parts for synset in _senses_of_word(part)]
        owners = [named.get(key) for part in parts for key in _keys(part)] + [below.get(synset) for synset in synsets]
        owner = next(filter(None, owners), None)
        if owner is not None:
            owner_of[word] = owner
    return owner_of


def senses(name: str) -> list[int]:
    """The synsets that a name may mean. For "crane bird", which WordNet lacks, those of "crane" below "bird"."""
    synsets = _lookup(name)
    first, _, last = _bare(name).rpartition(" ")
    if synsets or not first:
        return synsets
    kinds = _below(_lookup(last))
    return [synset for synset in _lookup(first) if synset in kinds]


def _senses_of_word(name: str) -> list[int]:
    """As `senses`; a name that WordNet does not have is a kind of what it ends with ("construction crane")."""
    parts = _bare(name).split(" ")
    ends = (_lookup(" ".join(parts[start:])) for start in range(1, len(parts)))
    return senses(name) or next(filter(None, ends), [])


def _lookup(name: str) -> list[int]:
    index = _index()
    return [synset for key in _keys(name) for synset in index.get(key, ())]


def _below(synsets: Iterable[int]) -> set[int]:
    """These synsets and all that are kinds of them."""
    kinds, to_see, seen = taxonomy().kinds, list(synsets), set[int]()
    while to_see:
        synset = to_see.pop()
        if synset not in seen:
            seen.add(synset)
            to_see += kinds[synset]
    return seen


@functools.cache
def _index() -> dict[str, list[int]]:
    """The synsets in which a word stands, by its key."""
    index: dict[str, list[int]] = defaultdict(list)
    for synset, words in enumerate(taxonomy().words):
        for word in words:
            index[_key(word)].append(synset)
    return dict(index)


def _alternatives(name: str) -> list[str]:
    """A text, and its names if there are several ("TV / monitor"), without text in brackets."""
    parts = [part for part in _ALTERNATIVES.split(_BRACKETS.sub(" ", name)) if part.strip()]
    return [name] if len(parts) < 2 else [name, *parts]


def _bare(name: str) -> str:
    """A name with single spaces and without brackets."""
    return " ".join(_BRACKETS.sub(" ", name).replace("_", " ").split())


def _keys(name: str) -> list[str]:
    """The keys of a name: itself, without an article, and its possible singulars."""
    bare = _bare(name)
    keys = [_key(bare), _key(_ARTICLE.sub("", bare))]
    keys += [
        key.removesuffix(plural) + singular
        for key in keys
        for plural, singular in _PLURALS
        if key.endswith(plural) and not (plural == "s" and key.endswith(_SINGULAR))
    ]
    return [key for key in dict.fromkeys(keys) if key]


def _key(name: str) -> str:
    """Only letters and digits, in lower case and without accents: "T-shirt" is "t shirt"."""
    if not name.isascii():
        name = unicodedata.normalize("NFKD", name)
    name = name.strip().casefold()
    return "".join(letter for letter in name if letter.isalnum()) or name
