"""WordNet 3.0 as the trainer needs it: synsets with lemmas, gloss, hypernyms and how common each sense is.

Reads the data files of the Debian package `wordnet-base` directly; ImageNet's class ids are offsets into the same
noun file.
"""

import functools
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path("/usr/share/wordnet")
_FILES = """
    adj.all adj.pert adv.all noun.Tops noun.act noun.animal noun.artifact noun.attribute noun.body noun.cognition
    noun.communication noun.event noun.feeling noun.food noun.group noun.location noun.motive noun.object noun.person
    noun.phenomenon noun.plant noun.possession noun.process noun.quantity noun.relation noun.shape noun.state
    noun.substance noun.time"""
LEXICOGRAPHER_FILES = _FILES.split()
# Files whose words name things that a photograph can show.
_VISIBLE_FILES = """
    noun.Tops noun.animal noun.artifact noun.body noun.food noun.location noun.object noun.person noun.phenomenon
    noun.plant noun.substance noun.shape noun.group"""
VISIBLE = frozenset(_VISIBLE_FILES.split())


@dataclass(frozen=True)
class Synset:
    """A set of words with one meaning."""

    key: str  # "n01440764", "a00001740"
    file: str  # lexicographer file, e.g. "noun.animal"
    lemmas: tuple[str, ...]  # spaces instead of underscores, spelled as in WordNet
    gloss: str  # the definition, without examples
    parents: tuple[str, ...]  # keys of the hypernyms (instance hypernyms included)

    @property
    def visible(self) -> bool:
        """Whether a photograph can show it."""
        return self.file in VISIBLE


def _read(part: str, letter: str) -> dict[str, Synset]:
    synsets: dict[str, Synset] = {}
    for line in (FOLDER / f"data.{part}").read_text("utf-8").splitlines():
        if line.startswith(" "):
            continue
        head, _, gloss = line.partition("|")
        fields = head.split()
        count = int(fields[3], 16)
        lemmas = tuple(re.sub(r"\([a-z]+\)$", "", fields[4 + 2 * i]).replace("_", " ") for i in range(count))
        at = 4 + 2 * count
        pointers = [fields[at + 1 + 4 * i : at + 5 + 4 * i] for i in range(int(fields[at]))]
        parents = tuple(letter + p[1] for p in pointers if p[0] in ("@", "@i"))
        # Satellite adjectives stand under the head they are similar to.
        parents += tuple(letter + p[1] for p in pointers if p[0] == "&" and fields[2] == "s")
        key, number = letter + fields[0], int(fields[1])
        file = LEXICOGRAPHER_FILES[number] if number < len(LEXICOGRAPHER_FILES) else part
        definition = re.split(r'; ?"', gloss.strip())[0].strip()
        synsets[key] = Synset(key, file, lemmas, definition, parents)
    return synsets


@functools.cache
def nouns() -> dict[str, Synset]:
    """All noun synsets by key."""
    return _read("noun", "n")


@functools.cache
def adjectives() -> dict[str, Synset]:
    """All adjective synsets by key."""
    return _read("adj", "a")


@functools.cache
def ancestors(key: str) -> frozenset[str]:
    """Every hypernym of a synset, itself included."""
    above = {key}
    for parent in (nouns() if key[0] == "n" else adjectives())[key].parents:
        if key[0] == "n":
            above |= ancestors(parent)
        else:
            above.add(parent)
    return frozenset(above)


@functools.cache
def sense_ranks(part: str = "noun", letter: str = "n") -> dict[str, list[str]]:
    """Lemma (lower case) -> its synsets, most common sense first."""
    senses: dict[str, list[str]] = {}
    for line in (FOLDER / f"index.{part}").read_text("utf-8").splitlines():
        if line.startswith(" "):
            continue
        fields = line.split()
        senses[fields[0].replace("_", " ")] = [letter + offset for offset in fields[-int(fields[2]) :]]
    return senses


def sense_counts() -> Counter[tuple[str, int]]:
    """(lemma, rank of its noun sense from 1) -> occurrences in the tagged corpus that ships with WordNet."""
    counts: Counter[tuple[str, int]] = Counter()
    for line in (FOLDER / "cntlist.rev").read_text("utf-8").splitlines():
        sense, rank, count = line.split()
        lemma, _, rest = sense.partition("%")
        if rest.startswith("1:"):
            counts[lemma.replace("_", " "), int(rank)] += int(count)
    return counts


@functools.cache
def irregular_plurals() -> dict[str, str]:
    """Singular -> plural, for the nouns that English spelling does not cover."""
    singular_to_plural: dict[str, str] = {}
    for line in (FOLDER / "noun.exc").read_text("utf-8").splitlines():
        plural, *singulars = line.replace("_", " ").split()
        for singular in singulars:
            singular_to_plural.setdefault(singular, plural)
    return singular_to_plural


def plural(name: str) -> str:
    """The plural of a noun phrase: exceptions from WordNet, then English spelling."""
    head, _, last = name.rpartition(" ")
    known = irregular_plurals().get(last.lower())
    if known:
        last = known
    elif re.search(r"(s|x|z|ch|sh)$", last):
        last += "es"
    elif re.search(r"[^aeiou]y$", last):
        last = last[:-1] + "ies"
    else:
        last += "s"
    return f"{head} {last}".strip()


def members(keys: list[str]) -> dict[str, list[int]]:
    """For every ancestor of the given synsets: the positions of those that stand below it."""
    below: dict[str, list[int]] = defaultdict(list)
    for position, key in enumerate(keys):
        for above in ancestors(key):
            below[above].append(position)
    return dict(below)
