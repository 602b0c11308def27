"""The trainer of the bundled model goes on exactly where it stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from training.lite.tower import Trainer


def small_trainer(folder: Path) -> Trainer:
    """A trainer whose tower is two layers: what is saved and loaded does not depend on its size."""
    torch.manual_seed(0)
    trainer = Trainer.__new__(Trainer)
    trainer.file = folder / "tower.safetensors"
    trainer.tower = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    trainer.teacher_head = nn.Linear(3, 2, bias=False)
    trainer.refiner = None
    trainer.classes = torch.randn(6, 3)
    trainer.step = 0
    trainer._new_optimiser()
    return trainer


def train(trainer: Trainer, steps: int) -> None:
    for _ in range(steps):
        trainer.step += 1
        inputs = torch.randn(7, 5, generator=torch.Generator().manual_seed(trainer.step))
        output = trainer.tower(inputs)
        loss = trainer.teacher_head(trainer.refiner(output) if trainer.refiner else output).square().sum()
        trainer.optimiser.zero_grad()
        loss.backward()
        trainer.optimiser.step()


@pytest.mark.parametrize("refined", [False, True])
def test_a_resumed_run_equals_one_that_was_not_interrupted(refined: bool, tmp_path: Path) -> None:
    whole, first, second = (small_trainer(tmp_path) for _ in range(3))
    for trainer in (whole, first):
        if refined:
            torch.manual_seed(1)
            trainer._add_refiner()
        train(trainer, 3)
    first.save()
    second.resume()
    assert second.step == 3
    train(whole, 4)
    train(second, 4)
    for part, module in whole._modules().items():
        for name, tensor in module.state_dict().items():
            assert torch.equal(tensor, second._modules()[part].state_dict()[name]), f"{part}/{name}"


def test_nothing_to_resume_is_no_error(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path)
    trainer.resume()
    assert trainer.step == 0
