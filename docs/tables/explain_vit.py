"""Train the small vision transformer on which heatmaps of vision transformers are measured.

    python docs/tables/explain_vit.py --data IMAGES --out FOLDER [--steps 300] [--images FOLDER]

It is a CLIP checkpoint in transformers format: 48 × 48 pixels, patches of 8, three blocks. Its text encoder is random
and fixed; the image encoder learns to name the colour of a disc anywhere on a grey photo of a texture. It is not a CLIP
and says nothing about one: it is a vision transformer that knows what to find, as a test of heatmaps needs. With
--images, new images are also written to FOLDER/known/COLOUR and, without a disc, to FOLDER/open, for
`deltaenergy check-model`.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.checkpoints import write_clip

SIDE, PATCH, DISC = 48, 8, 24
TRAIN, TEST = "train", "test"
COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 170, 60),
    "blue": (50, 80, 220),
    "yellow": (225, 205, 40),
    "purple": (150, 50, 190),
    "cyan": (50, 190, 205),
}


def drawn_images(images: Path, count: int, split: str) -> Iterator[Pasted]:
    """Discs on textures; those of `TEST` on textures that were not used in training."""
    rng = np.random.default_rng(0 if split == TRAIN else 1)
    kinds = sorted((images / "dtd10").iterdir())
    kinds = kinds[:7] if split == TRAIN else kinds[7:]
    grounds = [
        np.asarray(central_square(Image.open(file), SIDE).convert("L"), np.float64)
        for kind in kinds
        for file in sorted(kind.iterdir())
    ]
    rows, columns = np.mgrid[:SIDE, :SIDE]
    for number in range(count):
        name = list(COLOURS)[number % len(COLOURS)]
        ground = np.repeat(grounds[int(rng.integers(len(grounds)))][..., None], 3, axis=2)
        left, top = (int(rng.integers(0, SIDE - DISC + 1)) for _ in range(2))
        middle = DISC / 2 - 0.5
        inside = (rows - top - middle) ** 2 + (columns - left - middle) ** 2 <= (DISC / 2) ** 2
        shade = rng.uniform(0.6, 1.1) * np.asarray(COLOURS[name]) + rng.normal(0, 25, (SIDE, SIDE, 3))
        drawn = np.where(inside[..., None], shade, ground).clip(0, 255).astype(np.uint8)
        box = (left / SIDE, top / SIDE, (left + DISC) / SIDE, (top + DISC) / SIDE)
        yield Pasted(Image.fromarray(drawn), name, box)


def write_images(images: Path, folder: Path) -> None:
    """900 images that were not used in training, by colour, and a square of each texture."""
    for number, one in enumerate(drawn_images(images, 900, TEST)):
        (folder / "known" / one.name).mkdir(parents=True, exist_ok=True)
        one.image.save(folder / "known" / one.name / f"{number:03}.png")
    (folder / "open").mkdir()
    for kind in sorted((images / "dtd10").iterdir()):
        for file in sorted(kind.iterdir()):
            central_square(Image.open(file), SIDE).convert("RGB").save(folder / "open" / f"{kind.name}-{file.stem}.png")


def main() -> None:
    """Train, save, and print the accuracy on new images."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--images", type=Path)
    arguments = parser.parse_args()
    from transformers import CLIPModel

    write_clip(arguments.out, image_size=SIDE, patch_size=PATCH, width=64, layers=3, projection=64)
    start = de.load_model(arguments.out)
    texts = de.ZeroShotClassifier(start, list(COLOURS)).text_features
    module = CLIPModel.from_pretrained(arguments.out)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim > 1 and "embedding" not in name and name.startswith("vi"):
                parameter.div_(3)  # undo the scaling of write_clip, which makes random encoders distinguish images
    learned = [*module.vision_model.parameters(), *module.visual_projection.parameters()]
    optimizer = torch.optim.AdamW(learned, lr=2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=arguments.steps, pct_start=0.1)
    pool = list(drawn_images(arguments.data, 1200, TRAIN))
    pixels = torch.from_numpy(np.stack([start.preprocessing(one.image) for one in pool]))
    truth = torch.tensor([list(COLOURS).index(one.name) for one in pool])
    generator = torch.Generator().manual_seed(0)
    for step in range(arguments.steps):
        rows = torch.randint(len(pool), (32,), generator=generator)
        features = module.visual_projection(module.vision_model(pixels[rows]).pooler_output)
        logits = 100 * torch.nn.functional.normalize(features, dim=1) @ texts.T
        loss = torch.nn.functional.cross_entropy(logits, truth[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 49:
            right = float((logits.argmax(1) == truth[rows]).float().mean())
            print(f"step {step + 1}: loss {float(loss.detach()):.3f}, right {right:.2f}", flush=True)
    module.save_pretrained(arguments.out)
    trained = de.ZeroShotClassifier(de.load_model(arguments.out), list(COLOURS))
    new = list(drawn_images(arguments.data, 300, TEST))
    found = trained.similarities([one.image for one in new]).argmax(1)
    share = np.mean([list(COLOURS)[k] == one.name for k, one in zip(found, new)])
    print(f"accuracy on {len(new)} new images: {share:.1%}")
    if arguments.images is not None:
        write_images(arguments.data, arguments.images)


if __name__ == "__main__":
    main()
