"""A checkpoint in the layout of CLIPN's release becomes a "no" tower with the features of transformers' own model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import CLIPModel

from deltaenergy import Detector, Model, ZeroShotClassifier, load_model
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.scores.clipn.released import convert_released
from deltaenergy.scores.clipn.tower import NoTower
from tests.checkpoints import write_clip

NAMES = ["dog", "steam engine", "a very long name of a thing"]


def released(folder: Path, prompts: int = 3, seed: int = 0) -> tuple[dict[str, torch.Tensor], Any]:
    """Tensors as CLIPN's code names them, of a tiny CLIP, and transformers' text model with the "no" weights.

    The mean prompt is added to the embedding of each token: that is what adding it to the position embedding does.
    """
    clip = CLIPModel.from_pretrained(folder)
    generator = torch.Generator().manual_seed(seed)
    weights = {name: tensor.clone() for name, tensor in clip.state_dict().items() if name.startswith("text_")}
    noisy = {n: t + 0.05 * torch.randn(t.shape, generator=generator) for n, t in weights.items()}
    length, width = weights["text_model.embeddings.position_embedding.weight"].shape
    added = 0.1 * torch.randn(prompts, length, width, generator=generator)
    stored = {"prompt_no": added, "logit_scale": torch.tensor(4.6), "visual.proj": torch.zeros(2, 2)}
    for suffix, source in (("", weights), ("_no", noisy)):
        stored |= in_open_clip(source, suffix)
    positions = "text_model.embeddings.position_embedding.weight"
    clip.load_state_dict({**noisy, positions: noisy[positions] + added.mean(dim=0)}, strict=False)
    return {name: tensor.contiguous() for name, tensor in stored.items()}, clip.eval()


def in_open_clip(weights: dict[str, torch.Tensor], suffix: str) -> dict[str, torch.Tensor]:
    """Written out by hand, not by the package's own table."""
    found = {
        f"token_embedding{suffix}.weight": weights["text_model.embeddings.token_embedding.weight"],
        f"positional_embedding{suffix}": weights["text_model.embeddings.position_embedding.weight"],
        f"ln_final{suffix}.weight": weights["text_model.final_layer_norm.weight"],
        f"ln_final{suffix}.bias": weights["text_model.final_layer_norm.bias"],
        f"text_projection{suffix}": weights["text_projection.weight"].T,
    }
    blocks = {int(name.split(".")[3]) for name in weights if ".layers." in name}
    for number in blocks:
        theirs, ours = f"transformer{suffix}.resblocks.{number}", f"text_model.encoder.layers.{number}"
        for kind in ("weight", "bias"):
            parts = [weights[f"{ours}.self_attn.{part}_proj.{kind}"] for part in "qkv"]
            found[f"{theirs}.attn.in_proj_{kind}"] = torch.cat(parts)
            found[f"{theirs}.attn.out_proj.{kind}"] = weights[f"{ours}.self_attn.out_proj.{kind}"]
            for here, there in (("layer_norm1", "ln_1"), ("layer_norm2", "ln_2")):
                found[f"{theirs}.{there}.{kind}"] = weights[f"{ours}.{here}.{kind}"]
            for here, there in (("mlp.fc1", "mlp.c_fc"), ("mlp.fc2", "mlp.c_proj")):
                found[f"{theirs}.{there}.{kind}"] = weights[f"{ours}.{here}.{kind}"]
    return found


@pytest.mark.parametrize("prefix", ["", "module."])
def test_its_features_are_those_of_the_weights_that_were_released(
    prefix: str, tiny_clip: Model, tiny_clip_folder: Path, tmp_path: Path
) -> None:
    stored, reference = released(tiny_clip_folder)
    save_file({prefix + name: tensor for name, tensor in stored.items()}, tmp_path / "clipn.safetensors")
    convert_released(tmp_path / "clipn.safetensors", tiny_clip, tmp_path / "no")
    tower = NoTower.load(tmp_path / "no", tiny_clip)
    found = tower.class_features(NAMES, ["a photo of a {}."])
    text: Any = tiny_clip.text  # type: ignore[attr-defined]
    for name, row in zip(NAMES, found):
        (ids,) = text.tokenize([f"a photo of a {name}."])
        found_by = reference.get_text_features(input_ids=torch.tensor([ids]))
        expected = getattr(found_by, "pooler_output", found_by)[0].detach()
        torch.testing.assert_close(row, expected / expected.norm(), atol=1e-5, rtol=1e-4)


def test_the_score_runs_with_it(tiny_clip: Model, tiny_clip_folder: Path, tmp_path: Path, photos: Path) -> None:
    stored, _ = released(tiny_clip_folder)
    save_file(stored, tmp_path / "clipn.safetensors")
    convert_released(tmp_path / "clipn.safetensors", tiny_clip, tmp_path / "no")
    classifier = ZeroShotClassifier(tiny_clip, NAMES)
    verdicts = Detector(classifier, f"clipn(no_tower={tmp_path / 'no'})").calibrate(photos, keep=0.5).predict(photos)
    assert all(0 <= verdict.score <= 1 for verdict in verdicts)
    with pytest.raises(InputError, match="finished"):
        convert_released(tmp_path / "clipn.safetensors", tiny_clip, tmp_path / "no")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda stored: stored.pop("prompt_no"), "prompt_no"),
        (lambda stored: stored.pop("ln_final_no.bias"), "ln_final_no.bias"),
        (lambda stored: stored.update(text_projection_no=torch.zeros(2, 2)), "text_projection_no"),
        (lambda stored: stored.update({"ln_final.weight": stored["ln_final.weight"] + 1}), "another model"),
    ],
)
def test_what_is_not_of_this_model_is_refused(
    change: Any, message: str, tiny_clip: Model, tiny_clip_folder: Path, tmp_path: Path
) -> None:
    stored, _ = released(tiny_clip_folder)
    change(stored)
    save_file(stored, tmp_path / "clipn.safetensors")
    with pytest.raises(ArtifactError, match=message):
        convert_released(tmp_path / "clipn.safetensors", tiny_clip, tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_a_pickle_is_never_read(tiny_clip: Model, tmp_path: Path) -> None:
    torch.save({"state_dict": {}}, tmp_path / "epoch_10.pt")
    with pytest.raises(InputError, match="safetensors"):
        convert_released(tmp_path / "epoch_10.pt", tiny_clip, tmp_path / "no")


def test_the_tower_of_another_clip_is_refused(tiny_clip_folder: Path, tmp_path: Path) -> None:
    other = load_model(write_clip(tmp_path / "other", seed=5))
    stored, _ = released(tiny_clip_folder)
    save_file(stored, tmp_path / "clipn.safetensors")
    with pytest.raises(ArtifactError, match="another model"):
        convert_released(tmp_path / "clipn.safetensors", other, tmp_path / "no")
