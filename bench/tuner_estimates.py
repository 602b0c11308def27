"""What the dear tuning methods expect of a training with CLIP ViT-B/16 and 16 shots, as they tell it before a run.

    python bench/tuner_estimates.py

Nothing is trained: towers have the true shapes and random weights, and the figures are those of `Method.estimate`.
"""

from __future__ import annotations

from deltaenergy.classifiers.estimate import CPU_SPEED
from deltaenergy.classifiers.methods import make_method
from deltaenergy.tuning.tune import recipes_of
from towers import RandomClip, class_names

SHOTS = 16
ROWS = [
    ("lsn", 100),
    ("lsn", 1000),
    ("id-like", 7),
    ("id-like", 400),
    ("maple", 1000),
    ("promptsrc", 1000),
    ("plot++", 1000),
]


def main() -> None:
    model = RandomClip()
    print("| method | classes | memory, GB | hours at 100 GFLOP/s | what runs |\n|---|---:|---:|---:|---|")
    for spec, classes in ROWS:
        method = make_method(spec)
        estimate = method.estimate(model, class_names(classes), SHOTS * classes, recipes_of(method, {}))
        assert estimate is not None
        memory, hours = sum(estimate.memory.values()) / 2**30, estimate.operations / CPU_SPEED / 3600
        print(f"| {spec} | {classes:,} | {memory:.1f} | {hours:,.1f} | {estimate.step} |")


if __name__ == "__main__":
    main()
