"""Sentences to practise on: a name in a template, bare, in the plural, with an adjective, its gloss, a description."""

import json
import random
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from training.lite import wordnet
from training.lite.joint import class_list
from training.lite.targets import Names

MAIN_TEMPLATE = "a photo of a {}."
PLAIN = ("{}", "{}", "a {}", "the {}", "{}.", "a {}.", "an {}", "some {}", "one {}", "this is a {}.", "there is a {}.")
MORE = (
    "a photo of {}.",
    "a photo of an {}.",
    "a picture of a {}.",
    "an image of a {}.",
    "a photograph of a {}.",
    "this is a photo of a {}.",
    "a photo of the nice {}.",
    "a close-up photo of the nice {}.",
    "a good photo with the nice {}.",
    "the nice {}",
    "a nice photo of {}",
    "a photo of a person with a {}.",
    "a photo of a {} outdoors.",
    "a photo of a {} indoors.",
    "a view of a {}.",
    "a scene of a {}.",
    "a texture that looks {}.",
    "a snapshot of the {}",
    "an illustration of a {}.",
    "a cartoon of a {}.",
    "a silhouette of a {}.",
    "a line drawing of a {}.",
    "a stylized {}.",
    "an old photo of a {}.",
)
TYPED = ("a photo of a {}, a type of {}.", "a photo of {}, a type of {}.", "a {}, which is a {}.", "a {} {}")
PLURAL = ("{}", "a photo of {}.", "many {}", "a photo of many {}.", "{} in a row", "some {}.", "a group of {}")


def benchmark_file(name: str) -> object:
    """A JSON file that the package clip-benchmark carries."""
    spec = find_spec("clip_benchmark")
    assert spec is not None and spec.submodule_search_locations
    return json.loads(Path(spec.submodule_search_locations[0], "datasets", name).read_text("utf-8"))


@cache
def templates() -> tuple[str, ...]:
    """The 80 templates that CLIP's authors published for ImageNet."""
    found = benchmark_file("en_zeroshot_classification_templates.json")
    return tuple(t.replace("{c}", "{}") for t in found["imagenet1k"])  # type: ignore[index]


@cache
def descriptions() -> dict[str, list[str]]:
    """Class name (lower case) -> sentences on its looks."""
    found = benchmark_file("cupl_prompts.json")["imagenet1k"]  # type: ignore[index]
    return {name.lower(): sentences for name, sentences in found.items() if name in {n for _, n in class_list()}}


@dataclass
class Practice:
    """Draws names by weight and puts them into sentences."""

    names: Names
    adjectives: list[str]

    def __post_init__(self) -> None:
        self.shares = self.names.weights / self.names.weights.sum()
        self.plurals = [wordnet.plural(name) for name in self.names.names]

    def draw(self, number: int, rng: np.random.Generator) -> np.ndarray:
        """Positions of names, by weight."""
        return rng.choice(len(self.names.names), size=number, p=self.shares)

    def prompts(self, picked: np.ndarray, rng: np.random.Generator) -> tuple[str, list[str]]:
        """What all prompts of a batch start with, and how each goes on."""
        words = random.Random(int(rng.integers(2**31)))
        form = words.random()
        if form < 0.05:
            return "", [self._sentence(int(i), words) for i in picked]
        if form < 0.17:
            template, names = words.choice(PLURAL), self.plurals
        else:
            names = self.names.names
            if form < 0.42:
                template = MAIN_TEMPLATE
            elif form < 0.62:
                template = words.choice(templates())
            elif form < 0.74:
                template = words.choice(MORE)
            elif form < 0.92:
                template = words.choice(PLAIN)
            else:
                opening = words.choice(("a photo of a {} {{}}.", "a {} {{}}", "{} {{}}", "the {} {{}}."))
                template = opening.format(words.choice(self.adjectives))
        start, _, rest = template.partition("{}")
        return start, [names[i] + rest for i in picked]

    def _sentence(self, i: int, rng: random.Random) -> str:
        """A longer text about one name."""
        name, kind, head = self.names.names[i], self.names.kinds[i], self.names.heads[i]
        if kind == "adjective":
            noun = rng.choice(("texture", "pattern", "object", "thing", "surface", "scene"))
            return rng.choice(("{} {}", "a photo of a {} {}.", "a {} {}", "something {}, a {}")).format(name, noun)
        if head and rng.random() < 0.4:
            return rng.choice(TYPED).format(name, head)
        if kind == "class" and name in descriptions():
            return rng.choice(descriptions()[name])
        return self.names.glosses[i] or name
