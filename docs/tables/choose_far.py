"""Print the table "Far unknowns made of one's own pictures" of docs/results.md: does `choose` gain by them?

    python docs/tables/choose_far.py IMAGES --cache FOLDER [--model lite] [--seeds 3]

IMAGES holds the sets of choose_data.py, one folder per class. Their features, and those of the far unknowns made of
them, are kept in FOLDER.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from choose_data import ChooseTest, open_tests, pictures
from clip_features import judge

from deltaenergy import load_model
from deltaenergy.evaluation.choosing import FarUnknowns, candidate_scores, choose_from_features, given_to_choose
from deltaenergy.models.base import require_towers
from deltaenergy.scores.base import Score

NEAR, BOTH = "choose, near unknowns only", "choose, near and far"


def chosen(test: ChooseTest, candidates: list[Score], seed: int) -> dict[str, str]:
    """What each rule takes when it sees the pictures that are for choosing."""
    open_test = test.test
    choice = choose_from_features(
        open_test.classifier,
        torch.from_numpy(open_test.known[open_test.to_choose]),
        open_test.truth[open_test.to_choose],
        candidates,
        far=FarUnknowns(torch.from_numpy(test.far), test.far_truth),
        seed=seed,
        resamples=1,
    )
    # One look at both kinds serves both rules; of equal candidates the first in the list is taken.
    order = {score.spec: place for place, score in enumerate(candidates)}
    by_near = min(choice.ranking, key=lambda one: (-round(one.near.value, 9), order[one.spec]))
    return {NEAR: by_near.spec, BOTH: choice.best}


def print_table(rows: dict[str, np.ndarray], kinds: np.ndarray, names: list[str]) -> None:
    """Mean AUROC (and FPR95) over near, far and all tests; how far behind the best candidate of a test at most."""
    top = np.max([values[..., 0] for name, values in rows.items()], axis=0)
    print("| score | near tests | far tests | mean of both | lowest AUROC | furthest behind the best of its test |")
    print("|---|---:|---:|---:|---:|---:|")
    means = {
        name: [tuple(values[kinds == kind].mean(axis=(0, 1))) for kind in ("near", "far")]
        for name, values in rows.items()
    }
    for name, values in sorted(rows.items(), key=lambda row: -np.mean(means[row[0]], axis=0)[0]):
        behind = (top - values[..., 0]).max(axis=1)
        cells = [f"{auroc:.2f} / {fpr:.1f}" for auroc, fpr in (*means[name], np.mean(means[name], axis=0))]
        shown = f"**{name}**" if name in (NEAR, BOTH) else name
        print(
            f"| {shown} | {' | '.join(cells)} | {values[..., 0].min():.1f} | "
            f"{behind.max():.1f} ({names[int(behind.argmax())]}) |"
        )


def print_lead(rows: dict[str, np.ndarray], kinds: np.ndarray, known: np.ndarray) -> None:
    """Both against near only, and against the best fixed candidate: known sets are resampled with all their tests."""
    rng = np.random.default_rng(0)
    sets = np.unique(known)
    fixed = [name for name in rows if name not in (NEAR, BOTH)]

    def mean(lead: np.ndarray, kind: str, drawn: np.ndarray) -> float:
        picked = [lead[(known == one) & (kinds == kind)] for one in drawn]
        return float(np.concatenate(picked).mean())

    draws = [rng.choice(sets, len(sets)) for _ in range(2000)]
    best = max(fixed, key=lambda name: np.mean([rows[name][kinds == kind, :, 0].mean() for kind in ("near", "far")]))
    print("\nAUROC of choose on near and far above (95 % interval, known sets resampled):\n")
    for rival in (NEAR, best):
        lead = (rows[BOTH] - rows[rival])[..., 0].mean(axis=1)
        parts = []
        for kind in ("near", "far"):
            low, high = np.quantile([mean(lead, kind, drawn) for drawn in draws], [0.025, 0.975])
            parts.append(f"{kind} tests {mean(lead, kind, sets):+.2f} ({low:+.2f} to {high:+.2f})")
        print(f"- {rival}: {', '.join(parts)}")


def main() -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--cache", type=Path, required=True, help="folder for features")
    parser.add_argument("--model", default="lite")
    parser.add_argument("--seeds", type=int, default=3, help="how many deals of the classes")
    arguments = parser.parse_args()
    model = require_towers(load_model(arguments.model), "choose_far.py")
    tests = open_tests(pictures(arguments.images, arguments.cache, model), model)
    candidates, left_out = candidate_scores(given_to_choose(classifier=tests[0].test.classifier))
    print(f"Model `{model.name}` ({model.fingerprint[:12]}), {len(candidates)} candidates. {left_out}\n")
    measured = {
        score.spec: np.array([judge(one.test, score.spec, ~one.test.to_choose) for one in tests])
        for score in candidates
    }
    # Tests of one class list share what is chosen for it.
    picks: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for one in tests:
        classes = one.test.classifier.classes
        if classes not in picks:
            picks[classes] = [chosen(one, candidates, seed) for seed in range(arguments.seeds)]
    rows = {name: np.repeat(values[:, None], arguments.seeds, axis=1) for name, values in measured.items()}
    for rule in (NEAR, BOTH):
        rows[rule] = np.array(
            [[measured[pick[rule]][i] for pick in picks[one.test.classifier.classes]] for i, one in enumerate(tests)]
        )
    kinds, names = np.array([one.kind for one in tests]), [one.test.name for one in tests]
    print(f"{(kinds == 'near').sum()} near and {(kinds == 'far').sum()} far tests, {arguments.seeds} deals each\n")
    print_table(rows, kinds, names)
    print_lead(rows, kinds, np.array([name.split("/")[0].split(",")[0] for name in names]))
    for rule in (NEAR, BOTH):
        flat = [pick[rule] for found in picks.values() for pick in found]
        print(f"\n{rule}: " + ", ".join(f"{s} {flat.count(s)}×" for s in sorted(set(flat), key=flat.count)[::-1]) + ".")


if __name__ == "__main__":
    main()
