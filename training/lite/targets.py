"""What every name should point at: a unit vector of the joint space per WordNet noun, adjective and ImageNet name.

A name's target averages its senses; common senses and things that a photograph can show weigh most. ImageNet's own
names mean their class. Pictures of people carry, for the image tower, mostly the clothes they wear, since ImageNet has
hardly a class for people: every word below "person" therefore gets a share of the mean of all clothes.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from training.lite import wordnet
from training.lite.joint import JointSpace, class_list

PERSON, CLOTHING = "n00007846", "n03051540"
CLOTHING_SHARE = 0.5
INVISIBLE_SENSE = 0.1  # weight of a sense that cannot be photographed, next to one that can
SENSE_DECAY = 0.45  # a sense's weight next to the one before it, where the tagged corpus is silent


@dataclass
class Names:
    """The training vocabulary."""

    names: list[str]  # lower case
    vectors: Tensor  # (N, D) unit targets
    teacher: Tensor  # (N, 384) unit teacher embeddings
    weights: np.ndarray  # (N,) how often to practise a name
    glosses: list[str]  # definition of the main sense
    kinds: list[str]  # "class", "group" (has classes below it), "noun", "adjective"
    heads: list[str]  # a broader name for the "X, a type of Y" forms; "" if there is none


def synset_vectors(space: JointSpace, keys: list[str]) -> dict[str, Tensor]:
    """Unit vectors of synsets; people get their share of clothes."""
    vectors = space.targets(keys)
    clothes = vectors[CLOTHING]
    for key in keys:
        if key[0] == "n" and PERSON in wordnet.ancestors(key):
            vectors[key] = normalize((1 - CLOTHING_SHARE) * vectors[key] + CLOTHING_SHARE * clothes, dim=0)
    return vectors


def _sense_weights(name: str, keys: list[str], space: JointSpace, counts: dict[tuple[str, int], int]) -> list[float]:
    synsets = wordnet.nouns()
    weights = []
    for rank, key in enumerate(keys):
        weight = counts.get((name, rank + 1), 0) + 2.0 * SENSE_DECAY**rank
        weight *= 1.0 if synsets[key].visible else INVISIBLE_SENSE
        # A sense that the image tower knows pictures of is the likelier meaning when somebody shows pictures.
        weight *= 3.0 if key in space.members and space.members[key] and synsets[key].visible else 1.0
        weights.append(weight)
    return weights


def build_names(space: JointSpace, order: list[str], embeddings: dict[str, Tensor], written: Counter[str]) -> Names:
    """All names. `written` counts the words of running text: names of everyday things are practised more."""
    nouns, adjectives = wordnet.nouns(), wordnet.adjectives()
    vectors = synset_vectors(space, order)
    counts = dict(wordnet.sense_counts())
    rows: dict[str, tuple[Tensor, Tensor, float, str, str, str]] = {}

    for name, keys in wordnet.sense_ranks("adj", "a").items():
        vector, teacher = vectors[keys[0]], embeddings[keys[0]]
        rows[name] = (vector, teacher, 0.25, adjectives[keys[0]].gloss, "adjective", "")
    for name, keys in wordnet.sense_ranks().items():
        shares = _sense_weights(name, keys, space, counts)
        total = sum(shares)
        vector, teacher = vectors[keys[0]], embeddings[keys[0]]
        if len(keys) > 1:
            column = torch.tensor(shares)[:, None] / total
            vector = normalize((column * torch.stack([vectors[key] for key in keys])).sum(0), dim=0)
            teacher = normalize((column * torch.stack([embeddings[key] for key in keys])).sum(0), dim=0)
        main = keys[int(np.argmax(shares))]
        known = main in space.members
        seen = sum(counts.get((name, rank + 1), 0) for rank in range(len(keys)))
        visible = nouns[main].visible
        # Names of single persons, places and the like, which WordNet spells with a capital, are seldom asked for.
        proper = not any(lemma[0].islower() for lemma in nouns[main].lemmas)
        weight = (0.15 if proper else 1.0 if visible else 0.25) * (1 + np.log1p(seen)) * (8.0 if known else 1.0)
        weight *= 0.4 + 0.3 * np.log1p(min(written[word] for word in name.split(" ")))
        parents = nouns[main].parents
        head = nouns[parents[0]].lemmas[0].lower() if parents else ""
        rows[name] = (vector, teacher, float(weight), nouns[main].gloss, "group" if known else "noun", head)
    for index, (key, name) in enumerate(class_list()):
        synset = nouns[key]
        head = nouns[synset.parents[0]].lemmas[0].lower()
        entry = (space.joint.classes[index], embeddings[key], 30.0, synset.gloss, "class", head)
        rows[name.lower()] = entry
        for lemma in synset.lemmas:
            # WordNet's other names of a class mean the class too, unless they are more often something else.
            senses = wordnet.sense_ranks().get(lemma.lower(), [key])
            if senses[0] == key and rows.get(lemma.lower(), entry)[4] != "class":
                rows[lemma.lower()] = (*entry[:2], 6.0, *entry[3:])
    names = sorted(rows)
    picked = [rows[name] for name in names]
    return Names(
        names,
        torch.stack([row[0] for row in picked]),
        torch.stack([row[1] for row in picked]),
        np.array([row[2] for row in picked]),
        [row[3] for row in picked],
        [row[4] for row in picked],
        [row[5] for row in picked],
    )
