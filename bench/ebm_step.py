"""A training step with the EBM term beside one without, at 256 classes on ViT-B/16's text shapes (goal ≤ 1.05×)."""

from __future__ import annotations

import torch

from deltaenergy.classifiers.base import Outputs, TrainBatch
from deltaenergy.classifiers.ebm import Ebm
from deltaenergy.models.towers.prompts import LearnedPrompts
from timing import alternate, report
from towers import CONTEXT, batch, class_names, initial_context, text_tower

CLASSES = 256


def main() -> None:
    prompts = LearnedPrompts(text_tower(), class_names(CLASSES), CONTEXT)
    features, labels = batch(CLASSES)
    context, term = initial_context(), Ebm()

    def step(with_term: bool) -> None:
        context.grad = None
        texts = prompts(context)
        outputs = Outputs(features @ texts.T, features, texts)
        loss = torch.nn.functional.cross_entropy(100 * outputs.similarities, labels)
        (loss + term(outputs, TrainBatch(features, labels=labels))[0] if with_term else loss).backward()

    times = alternate(lambda: step(True), lambda: step(False))
    report("ebm step / coop step", times, "time", goal="≤ 1.05")


if __name__ == "__main__":
    main()
