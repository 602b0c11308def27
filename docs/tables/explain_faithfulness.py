"""Print the table "Where: are the maps faithful?" of docs/results.md: every method against random maps and occlusion.

    python docs/tables/explain_faithfulness.py --data IMAGES [--pictures 105] [--vit FOLDER]

IMAGES holds pacs and intel_scenes. A photograph of PACS, half as wide and high as the whole, is pasted anywhere on a
scene without buildings, so that a quarter of the picture is the object. The classes are PACS's seven; the target is the
similarity of the object's own class, or the score. What a curve shows is the softmax probability of that class, or the
score. With --vit, the tower is the small vision transformer that explain_vit.py trains and its pictures are used.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from faithfulness import Array, Pasted, area, curves, interval, paste, points_at
from PIL import Image

import deltaenergy as de
from deltaenergy.explain.methods import METHODS, Subject, make_maps
from deltaenergy.explain.targets import Target, class_target, score_target
from deltaenergy.explain.tracing import look_at
from deltaenergy.models.base import TowerModel, require_towers
from deltaenergy.models.convolutional import ConvolutionalModel
from deltaenergy.scores.defaults import WITHOUT_ID_IMAGES

CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
SCENES = ("forest", "glacier", "mountain", "sea")
SHARE = 0.5
RANDOM = "random"
MEASURES = ("pointing", "deletion", "insertion")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--pictures", type=int, default=105)
    parser.add_argument("--vit", type=Path)
    arguments = parser.parse_args()
    if arguments.vit is None:
        model = require_towers(de.load_model("lite"), "this table")
        classes, pasted = CLASSES, on_scenes(arguments.data, arguments.pictures, model.preprocessing.crop)
    else:
        from explain_vit import TEST, drawn_classes, drawn_pictures

        model = require_towers(de.load_model(arguments.vit), "this table")
        classes = drawn_classes()
        pasted = list(drawn_pictures(arguments.data, arguments.pictures, TEST))
    judge = de.Detector(de.ZeroShotClassifier(model, list(classes)), WITHOUT_ID_IMAGES)
    for target in ("class", "score"):
        found = measure(judge, model, pasted, target)
        print_table(found, target, judge, pasted)


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


def measure(
    judge: de.Detector, model: TowerModel, pasted: Sequence[Pasted], target: str
) -> dict[str, dict[str, Array]]:
    """By method and measure, one value for each picture."""
    classifier = judge.classifier
    suits = {"rollout": model.vision is not None, "grad-cam": isinstance(model, ConvolutionalModel)}
    names = [name for name in METHODS if suits.get(name, True)]
    found: dict[str, dict[str, list[float]]] = {n: {m: [] for m in MEASURES} for n in (*names, RANDOM)}
    subject = Subject(classifier, model)
    rng = np.random.default_rng(1)
    for one in pasted:
        pixels = torch.from_numpy(model.preprocessing(one.image))
        k = classifier.classes.index(one.name)

        def y(images: torch.Tensor, k: int = k) -> torch.Tensor:
            with torch.inference_mode():
                inputs = look_at(classifier, model.image_features(images), None, images)
                if target == "score":
                    return judge.scorer(inputs)
                return torch.softmax(inputs.similarities.double() * model.logit_scale, dim=1)[:, k]

        def target_of(rows: torch.Tensor, k: int = k) -> Target:
            return score_target(judge.scorer) if target == "score" else class_target(torch.full_like(rows, k))

        maps = {name: make_maps(METHODS[name], subject, pixels[None], target_of)[0].double().numpy() for name in names}
        maps[RANDOM] = rng.random((7, 7))
        for name, heatmap in maps.items():
            deletion, insertion = curves(y, pixels, heatmap)
            found[name]["pointing"].append(float(points_at(heatmap, one.box)))
            found[name]["deletion"].append(area(deletion))
            found[name]["insertion"].append(area(insertion))
    return {name: {m: np.array(values) for m, values in of.items()} for name, of in found.items()}


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
