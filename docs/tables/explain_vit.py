"""Train the small vision transformer that the maps for such towers are measured on.

    python docs/tables/explain_vit.py --data IMAGES --out FOLDER [--steps 2000]

It is a CLIP checkpoint in transformers' format: 48 × 48 pixels, patches of 8, three blocks. Its texts are those of a
random text tower, which stays as it is; the image tower learns to tell six drawn objects apart that stand anywhere on
photographs of textures, in a square of their own. No CLIP weights are needed, and none are claimed: the tower is a
vision transformer that knows what it looks for, which is what a test of its maps needs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from faithfulness import Pasted, central_square
from PIL import Image

import deltaenergy as de
from deltaenergy.benchmarks.drawn import OBJECTS, draw

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.checkpoints import write_clip

SIDE, PATCH, OBJECT = 48, 8, 24
TRAIN, TEST = "pretraining", "test"
DRAWINGS = {TRAIN: 100, TEST: 20}


def drawn_classes() -> tuple[str, ...]:
    """Six of the drawn objects."""
    return tuple(OBJECTS)[:6]


def drawn_pictures(images: Path, count: int, split: str) -> Iterator[Pasted]:
    """Drawn objects on textures; those of `TEST` are drawn anew, on textures that the training did not see."""
    rng = np.random.default_rng(0 if split == TRAIN else 1)
    kinds = sorted((images / "dtd10").iterdir())
    kinds = kinds[:7] if split == TRAIN else kinds[7:]
    grounds = [central_square(Image.open(file), SIDE) for kind in kinds for file in sorted(kind.iterdir())]
    names = drawn_classes()
    drawings = {
        name: [central_square(draw(name, "flat", split, i), OBJECT) for i in range(DRAWINGS[split])] for name in names
    }
    for number in range(count):
        name = names[number % len(names)]
        drawing = drawings[name][int(rng.integers(len(drawings[name])))]
        whole = grounds[int(rng.integers(len(grounds)))].copy()
        left, top = (int(rng.integers(0, SIDE - OBJECT + 1)) for _ in range(2))
        whole.paste(drawing, (left, top))
        right, bottom = left + OBJECT, top + OBJECT
        yield Pasted(whole, name, (left / SIDE, top / SIDE, right / SIDE, bottom / SIDE))


def main() -> None:
    """Train, save, and print how often the tower is right on new pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2000)
    arguments = parser.parse_args()
    from transformers import CLIPModel

    write_clip(arguments.out, image_size=SIDE, patch_size=PATCH, width=96, layers=3, projection=64)
    start = de.load_model(arguments.out)
    classifier = de.ZeroShotClassifier(start, list(drawn_classes()))
    texts = classifier.text_features
    module = CLIPModel.from_pretrained(arguments.out)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim > 1 and "embedding" not in name and "vision" in name:
                parameter.div_(3)  # undo what write_clip does to make random towers tell apart
    learned = [*module.vision_model.parameters(), *module.visual_projection.parameters()]
    optimizer = torch.optim.AdamW(learned, lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=arguments.steps, pct_start=0.1)
    pool = list(drawn_pictures(arguments.data, 4000, TRAIN))
    pixels = torch.from_numpy(np.stack([start.preprocessing(one.image) for one in pool]))
    truth = torch.tensor([drawn_classes().index(one.name) for one in pool])
    generator = torch.Generator().manual_seed(0)
    for step in range(arguments.steps):
        rows = torch.randint(len(pool), (48,), generator=generator)
        features = module.visual_projection(module.vision_model(pixels[rows]).pooler_output)
        logits = 30 * torch.nn.functional.normalize(features, dim=1) @ texts.T
        loss = torch.nn.functional.cross_entropy(logits, truth[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 49:
            right = float((logits.argmax(1) == truth[rows]).float().mean())
            print(f"step {step + 1}: loss {float(loss):.3f}, right {right:.2f}", flush=True)
    module.save_pretrained(arguments.out)
    trained = de.ZeroShotClassifier(de.load_model(arguments.out), list(drawn_classes()))
    new = list(drawn_pictures(arguments.data, 400, TEST))
    found = trained.similarities([one.image for one in new]).argmax(1)
    share = np.mean([drawn_classes()[k] == one.name for k, one in zip(found, new)])
    print(f"right on {len(new)} new pictures: {100 * share:.1f} %")


if __name__ == "__main__":
    main()
