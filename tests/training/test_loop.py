"""The training loop: recipe, early stopping, checkpoints, and runs that go wrong."""

from __future__ import annotations

import itertools
import json
import math
import resource
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import deltaenergy as de
from deltaenergy import Model
from deltaenergy.classifiers.coop import CoOp
from deltaenergy.classifiers.methods import make_method
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.files.artifact import sealed
from deltaenergy.training.checkpoints import TrainingError
from deltaenergy.training.recipe import Recipe, Stage
from deltaenergy.tuning.prepare import TrainSet, prepare_training
from deltaenergy.tuning.tune import fit
from deltaenergy.tuning.views import CachedViews, Validation
from tests.checkpoints import write_clip
from tests.labelled_pictures import CLASSES


def test_the_schedule_is_the_recipe_s() -> None:
    recipe = Recipe()
    rates = [recipe.rate(epoch) for epoch in range(30)]
    assert rates[0] == 1e-5
    assert rates[1] == 0.002
    assert rates[15] == pytest.approx(0.001 * (1 + math.cos(math.pi * 14 / 30)))
    assert all(a > b for a, b in itertools.pairwise(rates[1:])) and rates[-1] > 0
    assert Recipe(warmup_epochs=0, epochs=4).rate(2) == pytest.approx(0.001)
    # As torch's own scheduler has it, which Dassl steps after the warm-up epochs.
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.002)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
    for rate in rates[1:]:
        assert rate == pytest.approx(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    for wrong in ({"epochs": 0}, {"lr": 0.0}, {"lr": math.nan}, {"batch_size": 0}, {"optimizer": "lion"}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            Recipe(**wrong)  # type: ignore[arg-type]


def one_view_of(train_set: TrainSet) -> CachedViews:
    images = train_set.images
    assert isinstance(images, CachedViews) and images.patches is not None
    return CachedViews(images.features[:, :1], images.labels, images.patches[:, :1])


def entropy_of_background(logits: torch.Tensor, labels: torch.Tensor, top_k: int) -> torch.Tensor:
    """LoCoOp's mean entropy, patch by patch."""
    entropies = []
    for image, label in zip(logits, labels):
        for patch in image:
            if label not in patch.argsort(descending=True)[:top_k]:
                p = patch.exp() / patch.exp().sum()
                entropies.append(-(p * p.log()).sum())
    assert entropies, "no patch is background: the case says nothing"
    return torch.stack(entropies).mean()


@pytest.mark.parametrize("method", ["coop", "ebm", "locoop"])
def test_two_steps_equal_sgd_by_hand(method: str, tiny_clip: Model, train_set: TrainSet) -> None:
    """v ← 0.9 v + g + 5e-4 θ;  θ ← θ − rate · v, with gradients of the loss written down anew from each paper.

    coop: CE(L z·t);  ebm: CE + 3 e^{mean(lse(z·t) − lse((z⊙m)·t))}, m the top half of z ⊙ h;
    locoop: CE − 2 mean H(softmax(L u·t)) over patches whose top class is not the label.
    """
    spec = {
        "coop": "coop(context_length=3)",
        "ebm": "coop(context_length=3)+ebm(weight=3,p=0.5)",
        "locoop": "locoop(context_length=3,weight=2,top_k=1)",
    }[method]
    one_view = one_view_of(train_set)
    classifier = make_method(spec).build(tiny_clip, CLASSES, one_view, torch.Generator().manual_seed(1))
    context = classifier.get_parameter("context").detach().clone()
    recipe = {"epochs": 2, "batch_size": 64, "warmup_lr": 0.001}
    fit(classifier, one_view, recipe=recipe, generator=torch.Generator().manual_seed(2))
    z, labels, scale = one_view.features[:, 0], one_view.labels, tiny_clip.logit_scale
    assert one_view.patches is not None
    patches = one_view.patches[:, 0].float()

    def loss(theta: torch.Tensor) -> torch.Tensor:
        texts = classifier.prompts(theta)  # type: ignore[operator]
        logits = scale * z @ texts.T
        value = -torch.log_softmax(logits, dim=1)[torch.arange(len(z)), labels].mean()
        if method == "ebm":
            nearest = texts[(z @ texts.T).argmax(dim=1)].detach()
            products = z * nearest
            mask = (products >= products.sort(dim=1, descending=True).values[:, [z.shape[1] // 2 - 1]]).float()
            change = torch.logsumexp(z @ texts.T, dim=1) - torch.logsumexp((z * mask) @ texts.T, dim=1)
            value = value + 3 * torch.exp(change.mean())
        if method == "locoop":
            value = value - 2 * entropy_of_background(scale * patches @ texts.T, labels, 1)
        return value

    velocity, start = torch.zeros_like(context), context.clone()
    for rate in (0.001, 0.002):
        theta = context.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(theta), theta)
        velocity = 0.9 * velocity + gradient + 5e-4 * context
        context = context - rate * velocity
    moved = (context - start).abs().max()
    # Far below what leaving out a term, its sign, its weight or the logit scale would change.
    torch.testing.assert_close(classifier.get_parameter("context").detach(), context, atol=float(1e-3 * moved), rtol=0)


def test_weight_decay_is_part_of_the_step(tiny_clip: Model, train_set: TrainSet) -> None:
    """With a decay of 0.5 the context shrinks by rate · 0.5 beyond the gradient's step: θ(0) − θ(0.5) = rate · ½ θ0."""
    one_view = one_view_of(train_set)
    found = {}
    for decay in (0.0, 0.5):
        built = CoOp(context_length=3).build(tiny_clip, CLASSES, one_view, torch.Generator().manual_seed(1))
        start = built.get_parameter("context").detach().clone()
        recipe = {"epochs": 1, "batch_size": 64, "warmup_lr": 0.1, "weight_decay": decay}
        fit(built, one_view, recipe=recipe, generator=torch.Generator().manual_seed(2))
        found[decay] = built.get_parameter("context").detach()
    torch.testing.assert_close(found[0.0] - found[0.5], 0.1 * 0.5 * start, atol=1e-6, rtol=1e-3)


def test_weight_decay_leaves_bayes_cal_s_deviations_alone(tiny_clip: Model, train_set: TrainSet) -> None:
    """Acting on log σ = log 1e-5 it would pull σ towards 1; the means it shrinks as any context."""
    one_view, found, start = one_view_of(train_set), {}, {}
    for decay in (0.0, 0.5):
        method = make_method("bayes-cal(context_length=3)")
        built = method.build(tiny_clip, CLASSES, one_view, torch.Generator().manual_seed(1))
        start = {name: parameter.detach().clone() for name, parameter in built.named_parameters()}
        recipe = {"epochs": 1, "batch_size": 64, "warmup_lr": 0.1, "weight_decay": decay}
        fit(built, one_view, recipe=recipe, generator=torch.Generator().manual_seed(2))
        found[decay] = {name: parameter.detach() for name, parameter in built.named_parameters()}
    for name, undecayed in found[0.0].items():
        shrunk = 0.0 if "log_sigma" in name else 0.1 * 0.5 * start[name]
        torch.testing.assert_close(undecayed - found[0.5][name], shrunk + 0 * undecayed, atol=1e-5, rtol=1e-3)


def test_tip_adapter_f_s_first_step_is_adamw_s(tiny_clip: Model, train_set: TrainSet) -> None:
    """From zero moments m̂ = g and v̂ = g²: F ← F (1 − 0.001 · 0.01) − 0.001 g / (|g| + 1e-4)."""
    one_view = one_view_of(train_set)
    built = make_method("tip-adapter-f").build(tiny_clip, CLASSES, one_view, torch.Generator())
    keys = built.get_parameter("keys").detach().clone()
    z, labels = one_view.features[:, 0], one_view.labels
    theta = keys.clone().requires_grad_()
    one_hot = torch.eye(3)[labels]
    logits = tiny_clip.logit_scale * z @ built.text_features.T + torch.exp(-5.5 * (1 - z @ theta.T)) @ one_hot
    (g,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, labels), theta)
    fit(built, one_view, recipe={"epochs": 1}, generator=torch.Generator().manual_seed(2))
    expected = keys * (1 - 1e-5) - 0.001 * g / (g.abs() + 1e-4)
    torch.testing.assert_close(built.get_parameter("keys").detach(), expected, atol=2e-6, rtol=0)


def test_a_resumed_run_puts_the_best_epoch_back(tiny_clip: Model, train_set: TrainSet, tmp_path: Path) -> None:
    """Killed after the best epoch, with shuffled labels for validation, so that the best is not the last."""
    images = train_set.images
    assert isinstance(images, CachedViews)
    validation = Validation(images.features[:, 0], images.labels.roll(4), identity="shuffled")

    def run(**options: Any) -> Any:
        recipe = {"epochs": 6, "patience": 6, "warmup_lr": 0.02, "lr": 0.05}
        return de.tune(tiny_clip, CLASSES, train_set, "coop", val=validation, recipe=recipe, **options)

    whole = run()
    kept = whole.record["kept_epoch"]
    assert kept < 6

    class Killed(Exception):
        pass

    def kill(log: Any) -> None:
        if log.epoch == kept + 1:
            raise Killed

    with pytest.raises(Killed):
        run(checkpoints=tmp_path, on_epoch=kill)
    resumed = run(checkpoints=tmp_path)
    assert resumed.record["kept_epoch"] == kept
    assert torch.equal(resumed.get_parameter("context"), whole.get_parameter("context"))
    last = de.tune(
        tiny_clip, CLASSES, train_set, "coop", recipe={"epochs": 6, "warmup_lr": 0.02, "lr": 0.05}
    ).get_parameter("context")
    assert not torch.equal(last, whole.get_parameter("context"))


def test_the_best_epoch_on_validation_is_kept_and_training_stops(tiny_clip: Model, train_set: TrainSet) -> None:
    """Labels of validation are shuffled, so accuracy on them does not follow training."""
    images = train_set.images
    assert isinstance(images, CachedViews)
    validation = Validation(images.features[:, 0], images.labels.roll(4))
    classifier = de.tune(
        tiny_clip, CLASSES, train_set, method="coop", val=validation, recipe={"epochs": 30, "patience": 3}
    )
    logs = classifier.record["epochs"]
    kept = classifier.record["kept_epoch"]
    best = max(logs, key=lambda log: (log["val_accuracy"], -log["val_loss"], -log["epoch"]))
    assert kept == best["epoch"]
    assert len(logs) == kept + 3 < 30
    found = classifier.similarities(validation.features).argmax(axis=1)
    accuracy = float((torch.from_numpy(found) == validation.labels).float().mean())
    assert accuracy == pytest.approx(best["val_accuracy"])
    assert classifier.record["validation"]["accuracy"] == pytest.approx(accuracy)


def test_a_stage_that_validation_cannot_judge_runs_to_its_end(
    tiny_clip: Model, train_set: TrainSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = train_set.images
    assert isinstance(images, CachedViews)
    validation = Validation(images.features[:, 0], images.labels.roll(4))
    monkeypatch.setattr(CoOp, "stages", (Stage(keep_best=False), Stage()))
    classifier = de.tune(
        tiny_clip, CLASSES, train_set, method="coop", val=validation, recipe={"epochs": 20, "patience": 3}
    )
    logs = classifier.record["epochs"]
    first, second = ([log for log in logs if log["stage"] == stage] for stage in (1, 2))
    assert len(first) == 20 and all(log["val_accuracy"] is not None for log in first)
    assert len(second) == classifier.record["kept_epoch"] + 3 < 20


def test_without_validation_the_last_epoch_is_kept(tiny_clip: Model, train_set: TrainSet) -> None:
    classifier = de.tune(tiny_clip, CLASSES, train_set, method="coop", recipe={"epochs": 4})
    assert classifier.record["kept_epoch"] == 4
    assert [log["epoch"] for log in classifier.record["epochs"]] == [1, 2, 3, 4]


def test_a_loss_that_is_not_finite_stops_and_the_last_checkpoint_stays(
    tiny_clip: Model, train_set: TrainSet, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"method": "coop", "checkpoints": tmp_path}
    de.tune(tiny_clip, CLASSES, train_set, recipe={"epochs": 2}, **options)
    (tensors,) = tmp_path.glob("*.safetensors")
    before = tensors.read_bytes()

    class Broken(CachedViews):
        def batch(self, indices: torch.Tensor, epoch: int, generator: torch.Generator) -> Any:
            batch = super().batch(indices, epoch, generator)
            if epoch == 2:
                batch.features[0, 0] = math.nan
            return batch

    images = train_set.images
    assert isinstance(images, CachedViews)
    # The same run, but for a poisoned third epoch: the record of the first two is made to fit it.
    record = json.loads((tmp_path / "checkpoint.json").read_text())
    record["identity"]["recipe"]["epochs"] = 5
    (tmp_path / "checkpoint.json").write_text(json.dumps(sealed(record)))
    broken = TrainSet(train_set.sample, Broken(images.features, images.labels), train_set.views)
    with pytest.raises(TrainingError, match=r"nan in epoch 3.*epoch 2"):
        de.tune(tiny_clip, CLASSES, broken, recipe={"epochs": 5}, **options)
    assert tensors.read_bytes() == before
    resumed = de.tune(tiny_clip, CLASSES, train_set, recipe={"epochs": 5}, **options)
    assert len(resumed.record["epochs"]) == 5


def test_a_huge_learning_rate_is_told_as_such(tiny_clip: Model, train_set: TrainSet) -> None:
    with pytest.raises(TrainingError, match="learning rate"):
        de.tune(tiny_clip, CLASSES, train_set, method="clip-adapter", recipe={"lr": 1e38, "epochs": 6})


def test_a_full_disk_leaves_the_last_checkpoint_whole(tiny_clip: Model, train_set: TrainSet, tmp_path: Path) -> None:
    """No file may grow beyond a few bytes while the third epoch is saved, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_disk(log: Any) -> None:
        if log.epoch == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))

    options: dict[str, Any] = {"method": "coop", "recipe": {"epochs": 4}, "checkpoints": tmp_path}
    try:
        with pytest.raises(TrainingError, match=r"(?s)epoch 3 .*epoch 2 is in"):
            de.tune(tiny_clip, CLASSES, train_set, on_epoch=fill_disk, **options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".safetensors"]
    assert json.loads((tmp_path / "checkpoint.json").read_text())["epoch"] == 2
    resumed = de.tune(tiny_clip, CLASSES, train_set, **options)
    whole = de.tune(tiny_clip, CLASSES, train_set, method="coop", recipe={"epochs": 4})
    assert torch.equal(resumed.state_dict()["context"], whole.state_dict()["context"])


def test_a_process_that_was_killed_is_resumed(
    tiny_clip: Model, tiny_clip_folder: Path, coloured: Path, tmp_path: Path
) -> None:
    """SIGKILL in the middle of epoch 3, in a process of its own, with cached views on disk."""
    script = f"""
        import os, signal
        import deltaenergy as de
        model = de.load_model({str(tiny_clip_folder)!r})
        def kill(log):
            if log.epoch == 2:
                os.kill(os.getpid(), signal.SIGKILL)
        de.tune(model, {CLASSES!r}, {str(coloured)!r}, method="ebm", shots=3, views=2,
                recipe={{"epochs": 4}}, checkpoints={str(tmp_path)!r}, on_epoch=kill)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, check=False)
    assert done.returncode == -9, done.stderr.decode()
    assert (tmp_path / "views.safetensors").exists()
    options: dict[str, Any] = {"method": "ebm", "shots": 3, "views": 2, "recipe": {"epochs": 4}}
    seen: list[int] = []
    resumed = de.tune(
        tiny_clip, CLASSES, coloured, checkpoints=tmp_path, on_epoch=lambda log: seen.append(log.epoch), **options
    )
    assert seen == [3, 4]
    whole = de.tune(tiny_clip, CLASSES, coloured, **options)
    torch.testing.assert_close(resumed.state_dict()["context"], whole.state_dict()["context"], atol=1e-6, rtol=0)


def test_checkpoints_of_another_run_are_refused(
    tiny_clip: Model, train_set: TrainSet, coloured: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"recipe": {"epochs": 1}, "checkpoints": tmp_path / "run"}
    de.tune(tiny_clip, CLASSES, train_set, method="coop", **options)
    saved = sorted((path.name, path.read_bytes()) for path in (tmp_path / "run").iterdir())
    with pytest.raises(ArtifactError, match=r"'coop', now 'coop\+ebm'"):
        de.tune(tiny_clip, CLASSES, train_set, method="ebm", **options)
    with pytest.raises(ArtifactError, match="seed: saved 1, now 2"):
        de.tune(tiny_clip, CLASSES, train_set, method="coop", seed=2, **options)
    other = de.load_model(write_clip(tmp_path / "other", seed=1))
    with pytest.raises(ArtifactError, match="model: saved"):
        de.tune(other, CLASSES, TrainSet(train_set.sample, train_set.images, 3), method="coop", **options)
    fewer = prepare_training(tiny_clip, CLASSES[::-1], coloured, shots=4, views=3)
    with pytest.raises(ArtifactError, match="classes: saved"):
        de.tune(tiny_clip, CLASSES[::-1], fewer, method="coop", **options)
    assert sorted((path.name, path.read_bytes()) for path in (tmp_path / "run").iterdir()) == saved


def test_checkpoints_hold_no_pickle(tiny_clip: Model, train_set: TrainSet, tmp_path: Path) -> None:
    de.tune(tiny_clip, CLASSES, train_set, method="tip-adapter-f", recipe={"epochs": 2}, checkpoints=tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".safetensors"}
    assert len(list(tmp_path.iterdir())) == 2
    (tmp_path / "checkpoint.json").write_text("{")
    with pytest.raises(ArtifactError, match="cannot be read as JSON"):
        de.tune(tiny_clip, CLASSES, train_set, method="tip-adapter-f", recipe={"epochs": 2}, checkpoints=tmp_path)
