"""Print the tables of docs/results/heatmaps.md: every method against random heatmaps and occlusion.

    python docs/tables/explain_faithfulness.py --data IMAGES [--count 56] [--vit FOLDER] [--csv FOLDER]

IMAGES contains pacs and intel_scenes. A photo of PACS, half as wide and high as the whole, is pasted anywhere on a
scene without buildings, so a quarter of the image is the object. The classes are the seven of PACS; the target is the
similarity of the object's class, or the score. A curve shows the softmax probability of that class, or the score. With
--vit, the image encoder is the small vision transformer that explain_vit.py trains, tested on its own images.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from faithfulness import Array, Pasted, area, curves, interval, paste, points_at
from output import add_csv, print_table
from PIL import Image

import deltaenergy as de
from deltaenergy.explanation import occlusion
from deltaenergy.explanation.methods import (
    METHODS,
    ExplainedModel,
    Target,
    class_target,
    classify_for_score,
    make_maps,
    score_target,
)
from deltaenergy.models.base import TowerModel, require_towers
from deltaenergy.models.towers.convolutional import ConvolutionalModel

# The unfitted default when the table was measured.
SCORE = "delta-energy(tau=0.1,c=1)"
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
SCENES = ("forest", "glacier", "mountain", "sea")
SHARE = 0.5
RANDOM = "random"
TARGETS = ("class", "score")
MEASURES = ("pointing", "deletion", "insertion")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--count", type=int, default=56)
    parser.add_argument("--vit", type=Path)
    add_csv(parser)
    arguments = parser.parse_args()
    if arguments.vit is None:
        model = require_towers(de.load_model("lite"), "this table")
        classes, pasted = CLASSES, on_scenes(arguments.data, arguments.count, model.preprocessing.crop)
    else:
        from explain_vit import COLOURS, TEST, drawn_images

        model = require_towers(de.load_model(arguments.vit), "this table")
        classes = tuple(COLOURS)
        pasted = list(drawn_images(arguments.data, arguments.count, TEST))
    detector = de.Detector(de.ZeroShotClassifier(model, list(classes)), SCORE)
    found = measure(detector, model, pasted)
    for target in TARGETS:
        what = detector.score.spec if target == "score" else "similarity of the object's class"
        print(f"\n{what}, {len(pasted)} images; the object is {share_of_object(pasted):.0%} of each\n")
        columns = ["method", "pointing, % (95% interval)", "deletion (95% interval)", "insertion (95% interval)"]
        columns += [f"{m}, less {other}" for other in (RANDOM, "occlusion") for m in MEASURES]
        name = f"heatmaps-{'lite' if arguments.vit is None else 'vit'}-{target}"
        print_table(name, columns, rows_of(found[target]), arguments.csv)


def on_scenes(images: Path, count: int, side: int) -> list[Pasted]:
    """`count` photos of PACS, equally many of each class, on scenes."""
    rng = np.random.default_rng(0)
    things = {name: sorted((images / "pacs" / "photo" / name).iterdir()) for name in CLASSES}
    grounds = [file for scene in SCENES for file in sorted((images / "intel_scenes" / scene).iterdir())]
    found = []
    for number in range(count):
        name = CLASSES[number % len(CLASSES)]
        with Image.open(things[name][number // len(CLASSES)]) as thing, Image.open(rng.choice(grounds)) as ground:
            found.append(paste(thing, ground, name, side, SHARE, rng))
    return found


class Encoder:
    """Features of images; each set of images is encoded once."""

    def __init__(self, model: TowerModel) -> None:
        self.model = model
        self.known: dict[bytes, torch.Tensor] = {}

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Unit features (n, D)."""
        key = hashlib.blake2b(images.contiguous().numpy()).digest()
        if key not in self.known:
            with torch.inference_mode():
                self.known[key] = self.model.image_features(images)
        return self.known[key]


def measure(
    detector: de.Detector, model: TowerModel, pasted: Sequence[Pasted]
) -> dict[str, dict[str, dict[str, Array]]]:
    """By target, method and measure, one value per image."""
    suits = {"rollout": model.vision is not None, "grad-cam": isinstance(model, ConvolutionalModel)}
    names = [name for name in METHODS if suits.get(name, True)]
    rows: dict[str, dict[str, dict[str, list[float]]]] = {
        target: {name: {m: [] for m in MEASURES} for name in (*names, RANDOM)} for target in TARGETS
    }
    rng = np.random.default_rng(1)
    for one in pasted:
        pixels, encode = torch.from_numpy(model.preprocessing(one.image)), Encoder(model)
        chance = rng.random((7, 7))
        for target in TARGETS:
            for name, heatmap in heatmaps_of(detector, model, pixels, one.name, target, names, encode).items():
                note(rows[target][name], detector, pixels, one, target, heatmap, encode)
            note(rows[target][RANDOM], detector, pixels, one, target, chance, encode)
    return {
        target: {name: {m: np.array(values) for m, values in of.items()} for name, of in by_name.items()}
        for target, by_name in rows.items()
    }


def heatmaps_of(
    detector: de.Detector,
    model: TowerModel,
    pixels: torch.Tensor,
    name: str,
    target: str,
    methods: Sequence[str],
    encode: Encoder,
) -> dict[str, Array]:
    """One heatmap per method."""
    k = detector.classifier.classes.index(name)

    def target_of(rows: torch.Tensor) -> Target:
        return score_target(detector.scorer) if target == "score" else class_target(torch.full_like(rows, k))

    def covered(images: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return target_of(torch.zeros(len(images)).long())(
                classify_for_score(detector.classifier, encode(images), None, images)
            )

    found = {}
    for method in methods:
        if method == "occlusion":
            found[method] = occlusion(covered, pixels).double().numpy()
        else:
            explained = ExplainedModel(detector.classifier, model)
            found[method] = make_maps(METHODS[method], explained, pixels[None], target_of)[0].double().numpy()
    return found


def note(
    row: dict[str, list[float]],
    detector: de.Detector,
    pixels: torch.Tensor,
    one: Pasted,
    target: str,
    heatmap: Array,
    encode: Encoder,
) -> None:
    """Measure one heatmap."""
    k = detector.classifier.classes.index(one.name)

    def y(images: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            inputs = classify_for_score(detector.classifier, encode(images), None, images)
            if target == "score":
                return detector.scorer(inputs)
            return torch.softmax(inputs.similarities.double() * detector.classifier.model.logit_scale, dim=1)[:, k]

    deletion, insertion = curves(y, pixels, heatmap)
    row["pointing"].append(float(points_at(heatmap, one.box)))
    row["deletion"].append(area(deletion))
    row["insertion"].append(area(insertion))


def share_of_object(pasted: Sequence[Pasted]) -> float:
    """The mean area of the objects, as a share of the image."""
    return float(np.mean([(box[2] - box[0]) * (box[3] - box[1]) for box in (one.box for one in pasted)]))


def rows_of(found: dict[str, dict[str, Array]]) -> Iterator[list[str]]:
    """Each measure with its interval, then the intervals of the paired differences to random and to occlusion."""

    def cell(values: Array, measure: str, form: str) -> str:
        scale, digits = (100, 0) if measure == "pointing" else (1, 3)
        mean, low, high = (scale * value for value in interval(values))
        return form.format(mean=mean, low=low, high=high, digits=digits).replace("-", "−")

    for name, of in found.items():
        row = [name, *(cell(of[m], m, "{mean:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})") for m in MEASURES)]
        for other in (RANDOM, "occlusion"):
            for m in MEASURES:
                compared = name not in (RANDOM, other)
                row.append(
                    cell(of[m] - found[other][m], m, "{low:+.{digits}f} to {high:+.{digits}f}") if compared else "–"
                )
        yield row


if __name__ == "__main__":
    main()
