"""A training step of each tuning method beside the released procedure's: forward, losses and backward.

Towers have ViT-B/16's true shapes and random weights. The released procedures run 77 tokens for every prompt, through
transformers' own modules, once for each context, domain or image; the losses are ours on both sides, and so are random
numbers, so that the gradients can be compared. Where the released batch is another, the cost of an image is compared,
too. Where a method trains through the image tower, both sides run it alike. A method that runs no text tower in a step
has no peer here. Seconds are those of one core, so that a busy machine does not count. Each measurement runs in a
process of its own, so that its peak memory (ru_maxrss, less that before the step) is its own.

    python bench/tuner_steps.py              all rows
    python bench/tuner_steps.py dplclip lsn  some methods
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from deltaenergy.classifiers.base import TrainBatch
from deltaenergy.classifiers.methods import make_method
from deltaenergy.core.needs import Need
from deltaenergy.models.towers.prompts import LearnedPrompts
from deltaenergy.training.recipe import make_recipe
from deltaenergy.tuning.views import CachedViews, Domains
from towers import RandomClip, class_names, full_pass, full_passes

DOMAINS = ("w1", "w2", "w3")


@dataclass(frozen=True)
class Row:
    """What is measured: a method (in one of its phases) with its classes and images per step.

    `released` is the batch of the released code; 0 if that cannot be stated, and then there is no peer. With
    `runs_frozen_tower` that code runs the frozen image tower in every step, whose features are cached here.
    """

    method: str
    classes: int = 32
    images: int = 32
    released: int = 32
    phase: str = ""
    views: int = 1
    rounds: int = 3
    runs_frozen_tower: bool = False


ROWS = [
    Row("coop"),
    Row("coop+ebm"),
    Row("cocoop", classes=16, images=4, released=1),
    Row("locoop"),
    Row("bayes-cal"),
    Row("bayes-cal+ebm"),
    Row("dplclip", classes=16),
    Row("dplclip+ebm", classes=16),
    Row("gallop", classes=16),
    Row("negprompt", phase="positives", released=64),
    Row("negprompt", phase="negatives", released=64),
    Row("id-like", images=1, released=1, views=64),
    Row("lsn", phase="positives", released=8),
    Row("lsn", classes=16, phase="negatives", images=256, released=8),
    Row("lsn", classes=256, phase="negatives", images=256, released=0, rounds=1),
    Row("maple", classes=16, images=4, released=4),
    Row("promptsrc", classes=16, images=4, released=4, runs_frozen_tower=True),
    Row("promptsrc+ebm", classes=16, images=4, released=4, runs_frozen_tower=True),
    Row("plot", classes=16),
    Row("plot++", classes=16, phase="tokens", images=4, released=4),
    Row("plot++", classes=16, phase="both", images=4, released=4),
    Row("clip-adapter", released=0),
    Row("tip-adapter-f", images=256, released=0),
    Row("croft", released=0),
    Row("task-res", released=0),
]


def measure(row: Row, side: str) -> None:
    """Run some steps of one side and print time, memory and the first gradient as JSON."""
    if side == "released":
        LearnedPrompts.__call__ = full_pass  # type: ignore[method-assign]
        LearnedPrompts.each = full_passes  # type: ignore[method-assign]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    method, count = make_method(row.method), row.images if side == "ours" else row.released
    model = RandomClip()
    with torch.no_grad():
        data = images(row, count)
        classifier = method.build(model, class_names(row.classes), data, torch.Generator().manual_seed(0)).train()
    phases = [phase for stage in method.stages for phase in stage.phases]
    phase = next(one for one in phases if one.name == row.phase) if row.phase else phases[0]
    trained = phase.parameters(classifier)
    for name, parameter in classifier.named_parameters():
        parameter.requires_grad_(name in trained)
    chosen = batch(data, method.needs_to_train, count)
    before, times = peak(), []
    for _ in range(row.rounds if side == "ours" else 1):
        classifier.zero_grad()
        classifier.phase, classifier.generator = phase.name, torch.Generator().manual_seed(1)
        began = time.process_time()
        if row.runs_frozen_tower and side == "released" and chosen.pixels is not None:
            with torch.no_grad():
                model.image_features(chosen.pixels)
        outputs = classifier(chosen)
        losses = classifier.losses(outputs, chosen)
        for term in method.terms:
            losses[term.name] = term(outputs, chosen)[0]
        torch.stack(list(losses.values())).sum().backward()
        times.append(time.process_time() - began)
    gradient = next(iter(trained.values())).grad
    kept = [] if gradient is None else gradient.flatten()[:10_000].tolist()
    print(json.dumps({"seconds": statistics.median(times), "bytes": peak() - before, "gradient": kept}))


def images(row: Row, count: int) -> CachedViews:
    """Random training images of three domains, at least one of each class."""
    generator, total = torch.Generator().manual_seed(2), max(count, row.classes)
    features = torch.nn.functional.normalize(torch.randn(total, row.views, 512, generator=generator), dim=-1)
    return CachedViews(
        features, torch.arange(total) % row.classes, domains=Domains(torch.arange(total) % len(DOMAINS), DOMAINS)
    )


def batch(data: CachedViews, needs: frozenset[Need], count: int) -> TrainBatch:
    """The first images, with random patches, patch states and pixels where they are needed."""
    generator = torch.Generator().manual_seed(3)

    def drawn(need: Need, *shape: int) -> torch.Tensor | None:
        return torch.randn(count, *shape, generator=generator) if need in needs else None

    patches = drawn(Need.PATCHES, 196, 512)
    return TrainBatch(
        data.features[:count, 0],
        None if patches is None else torch.nn.functional.normalize(patches, dim=-1),
        drawn(Need.STATES, 196, 768),
        drawn(Need.PIXELS, 3, 224, 224),
        data.domains[:count],
        labels=data.labels[:count],
        indices=torch.arange(count),
        frozen=data.features[:count, 0],
    )


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(number: int, side: str) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__)), "--measure", str(number), side]
    return dict(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))


def report(number: int, row: Row) -> None:
    """Print one line for a row."""
    name = f"{row.method}{f' ({row.phase})' if row.phase else ''}, {row.classes} classes, {row.images} images"
    ours = run(number, "ours")
    line = f"{name}: {ours['seconds']:.2f} s, {ours['bytes'] / 2**20:.0f} MB"
    if row.released:
        peer = run(number, "released")
        slower, larger = peer["seconds"] / ours["seconds"], peer["bytes"] / max(1, ours["bytes"])
        line += (
            f"; released, {row.released} images: {peer['seconds']:.2f} s, {peer['bytes'] / 2**20:.0f} MB: "
            f"{slower:.1f}x the time, {larger:.1f}x the memory"
        )
        if row.released != row.images:
            line += f", {slower * row.images / row.released:.0f}x the time per image"
        else:
            a, b = torch.tensor(ours["gradient"]), torch.tensor(peer["gradient"])
            line += f"; gradients differ by {float((a - b).abs().max() / b.abs().max()):.0e} of the largest entry"
    print(line, flush=True)


def estimates() -> None:
    """What methods themselves expect of 1,000 classes with 16 shots."""
    model, names = RandomClip(), class_names(1000)
    for method in {row.method: make_method(row.method) for row in ROWS}.values():
        recipes = [make_recipe(method.recipe, stage.recipe) for stage in method.stages]
        found = method.estimate(model, names, 16_000, recipes)
        if found is not None:
            memory = ", ".join(f"{size / 2**30:.1f} GB for {what}" for what, size in found.memory.items())
            print(
                f"{method.spec} at 1,000 classes: {memory}; a step runs {found.step}; {found.operations:.1e} operations"
            )


def main(methods: list[str]) -> None:
    for number, row in enumerate(ROWS):
        if not methods or row.method in methods:
            report(number, row)
    estimates()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(ROWS[int(sys.argv[2])], sys.argv[3])
    else:
        main(sys.argv[1:])
