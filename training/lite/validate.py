"""Blind validation of the joint space and of the targets: which choices are good, judged without any evaluation set.

Pictures: every second picture (even class index) of a folder with one picture per ImageNet class; the other half
stays for the model card.
    1000-way    pictures against the 1,000 class targets
    kinds       pictures against ten random disjoint WordNet nouns of any level that have classes below them
    broad       one broad noun (8 classes or more) against nine narrow ones
    hidden      a tenth of the classes hidden from everything (rows, logits, regression): their pictures against the
                hidden names only, and hidden / seen pictures against 14 random other names
"""

import random

import torch
from torch import Tensor

from training.lite import wordnet
from training.lite.joint import JointSpace


def _common_nodes(members: dict[str, list[int]]) -> list[str]:
    ranks, counts, synsets = wordnet.sense_ranks(), wordnet.sense_counts(), wordnet.nouns()

    def used(key: str) -> int:
        names = [lemma.lower() for lemma in synsets[key].lemmas]
        return max((counts[n, ranks[n].index(key) + 1] for n in names if key in ranks.get(n, ())), default=0)

    return [key for key in sorted(members) if len(members[key]) <= 150 and used(key) >= 3]


def _tasks(members: dict[str, list[int]], nodes: list[str], broad: bool, number: int = 200) -> list[list[str]]:
    rng = random.Random(0)
    wide = [key for key in nodes if len(members[key]) >= 8]
    pool = [key for key in nodes if len(members[key]) <= 3] if broad else nodes
    tasks = []
    for _ in range(number):
        chosen = [rng.choice(wide)] if broad else []
        used = {m for key in chosen for m in members[key]}
        for key in rng.sample(pool, len(pool)):
            if len(chosen) < 10 and not used & set(members[key]):
                chosen.append(key)
                used |= set(members[key])
        tasks.append(chosen)
    return tasks


def kinds(pictures: Tensor, members: dict[str, list[int]], vectors: dict[str, Tensor], broad: bool) -> float:
    """Mean over tasks of the mean accuracy per name (of the first name only, if `broad`), on pictures of even index."""
    results = []
    for task in _tasks(members, _common_nodes(members), broad):
        table = torch.stack([vectors[key] for key in task])
        right = []
        for position, key in enumerate(task[:1] if broad else task):
            rows = [m for m in members[key] if m % 2 == 0]
            if rows:
                right.append(((pictures[rows] @ table.T).argmax(1) == position).float().mean().item())
        if right:
            results.append(sum(right) / len(right))
    return sum(results) / len(results)


def hidden(
    keys: list[str],
    rows: Tensor,
    biases: Tensor,
    mean: Tensor,
    embeddings: dict[str, Tensor],
    features: Tensor,
    folds: int = 4,
) -> list[float]:
    """[hidden among hidden, hidden among 15 names, seen among 15 names]."""
    order = torch.randperm(len(keys), generator=torch.Generator().manual_seed(0))
    draw = torch.Generator().manual_seed(1)
    results = []
    for fold in range(folds):
        away = sorted(order[fold::10].tolist())
        seen = sorted(set(range(len(keys))) - set(away))
        space = JointSpace([keys[i] for i in seen], rows[seen], mean, embeddings)
        vectors = torch.zeros(len(keys), space.joint.classes.shape[1])
        vectors[seen] = space.joint.classes
        vectors[away] = torch.stack(list(space.targets([keys[i] for i in away]).values()))
        pictures = space.joint.picture(features, features @ rows[seen].T + biases[seen])
        similarity = pictures @ vectors.T
        tested = [i for i in away if i % 2 == 0]
        among = (
            (torch.tensor(away)[similarity[tested][:, away].argmax(1)] == torch.tensor(tested)).float().mean().item()
        )
        short = []
        for pool in (tested, [i for i in seen if i % 2 == 0][:200]):
            right = []
            for i in pool:
                for _ in range(10):
                    others = torch.randperm(len(keys), generator=draw)[:15]
                    right.append(float(similarity[i, i] > similarity[i, others[others != i][:14]].max()))
            short.append(sum(right) / len(right))
        results.append([among, *short])
    return torch.tensor(results).mean(0).tolist()
