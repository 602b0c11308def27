"""Print the table "Where: are the maps faithful?" of docs/results.md: every method against random maps and occlusion.

    python docs/tables/explain_faithfulness.py --data IMAGES [--pictures 56] [--vit FOLDER]

IMAGES holds pacs and intel_scenes. A photograph of PACS, half as wide and high as the whole, is pasted anywhere on a
scene without buildings, so that a quarter of the picture is the object. The classes are PACS's seven; the target is the
similarity of the object's own class, or the score. What a curve shows is the softmax probability of that class, or the
score. With --vit, the tower is the small vision transformer that explain_vit.py trains and its pictures are used.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from faithfulness import Array, Pasted, area, curves, interval, paste, points_at
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

# The unfitted default when the table was made.
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
    parser.add_argument("--pictures", type=int, default=56)
    parser.add_argument("--vit", type=Path)
    arguments = parser.parse_args()
    if arguments.vit is None:
        model = require_towers(de.load_model("lite"), "this table")
        classes, pasted = CLASSES, on_scenes(arguments.data, arguments.pictures, model.preprocessing.crop)
    else:
        from explain_vit import COLOURS, TEST, drawn_pictures

        model = require_towers(de.load_model(arguments.vit), "this table")
        classes = tuple(COLOURS)
        pasted = list(drawn_pictures(arguments.data, arguments.pictures, TEST))
    judge = de.Detector(de.ZeroShotClassifier(model, list(classes)), SCORE)
    found = measure(judge, model, pasted)
    for target in TARGETS:
        print_table(found[target], target, judge, pasted)


def on_scenes(images: Path, count: int, side: int) -> list[Pasted]:
    """So many photographs of PACS, evenly of each class, on scenes."""
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
    """Features of images; of one picture's, each set of images is encoded once, whatever is asked of it."""

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


def measure(judge: de.Detector, model: TowerModel, pasted: Sequence[Pasted]) -> dict[str, dict[str, dict[str, Array]]]:
    """By target, method and measure, one value for each picture."""
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
            for name, heatmap in maps_of(judge, model, pixels, one.name, target, names, encode).items():
                note(rows[target][name], judge, pixels, one, target, heatmap, encode)
            note(rows[target][RANDOM], judge, pixels, one, target, chance, encode)
    return {
        target: {name: {m: np.array(values) for m, values in of.items()} for name, of in by_name.items()}
        for target, by_name in rows.items()
    }


def maps_of(
    judge: de.Detector,
    model: TowerModel,
    pixels: torch.Tensor,
    name: str,
    target: str,
    methods: Sequence[str],
    encode: Encoder,
) -> dict[str, Array]:
    """One map by each method."""
    k = judge.classifier.classes.index(name)

    def target_of(rows: torch.Tensor) -> Target:
        return score_target(judge.scorer) if target == "score" else class_target(torch.full_like(rows, k))

    def covered(images: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return target_of(torch.zeros(len(images)).long())(
                classify_for_score(judge.classifier, encode(images), None, images)
            )

    found = {}
    for method in methods:
        if method == "occlusion":
            found[method] = occlusion(covered, pixels).double().numpy()
        else:
            explained = ExplainedModel(judge.classifier, model)
            found[method] = make_maps(METHODS[method], explained, pixels[None], target_of)[0].double().numpy()
    return found


def note(
    row: dict[str, list[float]],
    judge: de.Detector,
    pixels: torch.Tensor,
    one: Pasted,
    target: str,
    heatmap: Array,
    encode: Encoder,
) -> None:
    """Measure one map."""
    k = judge.classifier.classes.index(one.name)

    def y(images: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            inputs = classify_for_score(judge.classifier, encode(images), None, images)
            if target == "score":
                return judge.scorer(inputs)
            return torch.softmax(inputs.similarities.double() * judge.classifier.model.logit_scale, dim=1)[:, k]

    deletion, insertion = curves(y, pixels, heatmap)
    row["pointing"].append(float(points_at(heatmap, one.box)))
    row["deletion"].append(area(deletion))
    row["insertion"].append(area(insertion))


def print_table(found: dict[str, dict[str, Array]], target: str, judge: de.Detector, pasted: Sequence[Pasted]) -> None:
    """A table in Markdown: each measure with its interval, and how far it is from random and from occlusion."""
    area_of_box = np.mean([(box[2] - box[0]) * (box[3] - box[1]) for box in (one.box for one in pasted)])
    what = judge.score.spec if target == "score" else "similarity of the object's class"
    print(f"\n{what}, {len(pasted)} pictures; the object is {100 * area_of_box:.0f} % of each\n")
    print("| method | pointing, % | deletion (lower is better) | insertion (higher is better) |")
    print("|---|---|---|---|")
    for name, of in found.items():
        cells = []
        for m in MEASURES:
            scale, digits = (100, 0) if m == "pointing" else (1, 3)
            mean, low, high = (scale * value for value in interval(of[m]))
            cell = f"{mean:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
            if name != RANDOM:
                _, low, high = (scale * value for value in interval(of[m] - found[RANDOM][m]))
                cell += f"; less random {low:+.{digits}f} to {high:+.{digits}f}"
            if name not in (RANDOM, "occlusion"):
                _, low, high = (scale * value for value in interval(of[m] - found["occlusion"][m]))
                cell += f"; less occlusion {low:+.{digits}f} to {high:+.{digits}f}"
            cells.append(cell.replace("-", "−"))
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
