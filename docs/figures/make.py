"""Draw the figures of the documentation from measured data: docs/thresholds.svg, near-and-far.svg and tuning.svg.

    python docs/figures/make.py CLIP STORES

CLIP has the CLIP ViT-B/16 features of docs/tables/verdicts.py. STORES has feature stores of the bundled model, one per
dataset: `deltaenergy features IMAGES/pacs --out STORES/pacs`, and the same for dtd10 and oxford_pets.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import deltaenergy as de
from deltaenergy.core.classes import normal_name
from deltaenergy.report.charts import (
    Axis,
    Curve,
    HistogramRow,
    Scale,
    colour,
    curve_chart,
    histogram_chart,
    nice_ticks,
    plain,
    svg,
)
from deltaenergy.report.html import Markup, join, tag
from deltaenergy.stats.thresholds import threshold_of

DOCS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(DOCS / "tables"))

from verdicts import terms_of, unfitted  # noqa: E402

Floats = npt.NDArray[np.float64]
KNOWN, NEAR, FAR = "20 dog breeds (known)", "wolves, foxes (near unknowns)", "food (far unknowns)"
SETS = {"pacs": "PACS", "dtd10": "DTD-10", "oxford_pets": "Oxford Pets"}
SHOTS, SEEDS = (1, 2, 4, 8, 16), range(1, 6)
# Its own background, and the palette of the reports: readable on light and dark pages, whatever the page's scheme.
STYLE = """
svg { --bg: #fff; --text: #1b2430; --muted: #566270; --grid: #e3e7ec; --shade: #f2f4f7;
  --c0: #0072b2; --c1: #d55e00; --c2: #008a64; font-family: system-ui, sans-serif; }
@media (prefers-color-scheme: dark) { svg { --bg: #161b22; --text: #e6eaf0; --muted: #a5b0bd; --grid: #2c343f;
  --shade: #222a34; --c0: #56b4e9; --c1: #ff8648; --c2: #35c795; } }
.bg { fill: var(--bg); } text { fill: var(--text); font-size: 12px; } .strong { font-weight: 600; }
.tick, .label, .note { fill: var(--muted); font-size: 11px; }
.middle { text-anchor: middle; } .end { text-anchor: end; }
.grid { stroke: var(--grid); } .axis { stroke: var(--muted); }
.reference { stroke: var(--muted); stroke-dasharray: 2 4; }
.threshold { stroke: var(--text); stroke-width: 1.4; } .rejected { fill: var(--shade); }
.c0 { fill: var(--c0); } .c1 { fill: var(--c1); } .c2 { fill: var(--c2); } .curve { fill: none; stroke-width: 2; }
.curve.c0 { stroke: var(--c0); } .curve.c1 { stroke: var(--c1); } .curve.c2 { stroke: var(--c2); }
.band { opacity: 0.2; } circle { opacity: 0.75; }
"""


def write(name: str, chart: Markup) -> None:
    """A chart as a file of its own, with its style and background."""
    head, _, body = str(chart).partition(">")
    ground = tag("rect", width="100%", height="100%", rx=8, class_="bg")
    text = f'{head} xmlns="http://www.w3.org/2000/svg"><style>{STYLE}</style>{ground}{body}\n'
    (DOCS / name).write_text(text, encoding="utf-8")


def unit(rows: npt.NDArray[Any]) -> Floats:
    return np.asarray(rows / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True), dtype=np.float64)


def dogs(folder: Path) -> dict[str, tuple[Floats, Floats]]:
    """Cosines of known, near and far images with the classes, and with other words."""
    features = unit(np.load(folder / "verdict_tests.npz")["features"])
    names = unit(np.load(folder / "imagenet_text_a_photo_of_a.npy"))
    tests = json.loads((folder / "verdict_tests.json").read_text(encoding="utf-8"))["tests"]
    found = {}
    for test in tests:
        if label := {"dogs/wild canids": NEAR, "dogs/food": FAR}.get(test["name"]):
            words = np.setdiff1d(np.arange(1000), [*test["classes"], *test["names_of_unknown"]])
            for name, part in ((KNOWN, "known"), (label, "unknown")):
                rows = features[np.array(test[part])]
                found[name] = rows @ names[test["classes"]].T, rows @ names[words].T
    return {name: found[name] for name in (KNOWN, NEAR, FAR)}


def thresholds(groups: dict[str, tuple[Floats, Floats]]) -> Markup:
    """The default score of each group, and a threshold set on 100 of the known images."""
    values = {name: unfitted(terms_of(*cosines)) for name, cosines in groups.items()}
    order = np.random.default_rng(0).permutation(len(values[KNOWN]))
    threshold = threshold_of(np.sort(values[KNOWN][order[:100]]), 0.95, None)
    values[KNOWN] = values[KNOWN][order[100:]]
    rows = []
    for index, (name, group) in enumerate(values.items()):
        kept = float((group >= threshold).mean())
        note = f"{kept:.0%} kept" if name == KNOWN else f"{1 - kept:.0%} rejected"
        rows.append(HistogramRow(name, group, index, note))
    return histogram_chart(
        rows,
        title="Scores of known and unknown images",
        x_label="score: larger = more like the known classes",
        threshold=threshold,
        below="none of these",
        above="known",
        description="; ".join(f"{row.label}: {row.note}" for row in rows),
        width=640,
    )


def near_and_far(groups: dict[str, tuple[Floats, Floats]]) -> Markup:
    """Each image by its cosine with the closest class and with the closest other word."""
    x, y = Axis(0.1, 0.45, start=60, end=620), Axis(0.15, 0.42, start=330, end=34)
    parts = [tag("line", x1=x(0.15), y1=y(0.15), x2=x(0.42), y2=y(0.42), class_="reference")]
    parts.append(tag("text", "a class fits better", x=x(0.44), y=y(0.29), class_="note end"))
    parts.append(tag("text", "another word fits better", x=x(0.28), y=y(0.37), class_="note end"))
    for value in nice_ticks(y.low, y.high):
        parts.append(tag("line", x1=x.start, x2=x.end, y1=y(value), y2=y(value), class_="grid"))
        parts.append(tag("text", plain(value), x=x.start - 7, y=y(value) + 4, class_="tick end"))
    for value in nice_ticks(x.low, x.high):
        parts.append(tag("text", plain(value), x=x(value), y=y.start + 17, class_="tick middle"))
    parts.append(tag("text", "cosine with the closest class", x=340, y=y.start + 36, class_="label middle"))
    turned = "rotate(-90 16 182)"
    parts.append(
        tag("text", "cosine with the closest other word", x=16, y=182, class_="label middle", transform=turned)
    )
    for index, (name, (classes, words)) in enumerate(groups.items()):
        dots = zip(classes.max(axis=1), words.max(axis=1))
        parts += [tag("circle", cx=round(x(a), 1), cy=round(y(b), 1), r=3, class_=colour(index)) for a, b in dots]
        parts.append(tag("circle", cx=66 + 205 * index, cy=16, r=5, class_=colour(index)))
        parts.append(tag("text", name, x=76 + 205 * index, y=20))
    return svg(640, 380, "Known images, near and far unknowns", join(parts))


def accuracies(stores: Path, name: str) -> tuple[float, Floats]:
    """Accuracy in percent before tuning, and after it: a row for each number of images, a column for each sample."""
    model = de.load_model("lite")
    store = de.Store.open(stores / name, model)
    labels = np.array([normal_name(str(label)) for label in store.labels])
    features, classes = store.features(), sorted(set(labels))
    plain = de.ZeroShotClassifier(model, classes)

    def accuracy(classifier: de.Classifier, rows: npt.NDArray[np.int64]) -> float:
        similarities = np.asarray(classifier.similarities(store.select(rows.tolist())))
        return 100 * float((np.array(classes)[similarities.argmax(axis=1)] == labels[rows]).mean())

    after = []
    most = min(np.unique(labels, return_counts=True)[1])
    for shots in [shots for shots in SHOTS if shots < most]:
        for seed in SEEDS:
            order = np.random.default_rng(seed).permutation(len(labels))
            drawn = np.concatenate([order[labels[order] == one][:shots] for one in classes])
            train = de.LabelledFeatures(features[drawn], labels[drawn].tolist())
            tuned = de.tune(model, classes, train, "lp++", shots=shots, seed=seed)
            after.append(accuracy(tuned, np.setdiff1d(order, drawn)))
    return accuracy(plain, np.arange(len(labels))), np.array(after).reshape(-1, len(SEEDS))


def tuning(stores: Path) -> Markup:
    """Accuracy over the number of images per class; 0 is before tuning."""
    curves, said = [], []
    for index, (name, title) in enumerate(SETS.items()):
        before, after = accuracies(stores, name)
        middle = [before, *after.mean(axis=1)]
        low, high = [before, *after.min(axis=1)], [before, *after.max(axis=1)]
        places = [float(place) for place in range(len(middle))]
        curves.append(Curve(title, places, middle, low, high, index, markers=True))
        said.append(
            f"{title}: {middle[0]:.0f}% before, {middle[-1]:.0f}% with {SHOTS[len(middle) - 2]} images per class"
        )
        print(name, np.round(middle, 1).tolist())
    ticks = [float(place) for place in range(len(SHOTS) + 1)]
    words = ["before", *map(str, SHOTS)]
    chart = curve_chart(
        curves,
        Scale("images per class", (0, len(SHOTS)), lambda value: words[round(value)], ticks),
        Scale("accuracy, %", (0, 100)),
        title="Accuracy before and after tuning",
        description="; ".join(said),
        size=(640, 330),
    )
    keys = []
    for index, curve in enumerate(curves):
        keys.append(tag("circle", cx=390, cy=224 + 20 * index, r=5, class_=colour(index)))
        keys.append(tag("text", f"{curve.label}: {curve.y[0]:.0f}% → {curve.y[-1]:.0f}%", x=402, y=228 + 20 * index))
    return Markup(str(chart).removesuffix("</svg>") + str(join(keys)) + "</svg>")


def main() -> None:
    """Write all figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clip", type=Path)
    parser.add_argument("stores", type=Path)
    options = parser.parse_args()
    groups = dogs(options.clip)
    write("thresholds.svg", thresholds(groups))
    write("near-and-far.svg", near_and_far(groups))
    write("tuning.svg", tuning(options.stores))


if __name__ == "__main__":
    main()
