"""What a checkpoint folder must hold, and what is said of one that does not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import CLIPModel

import deltaenergy as de
from deltaenergy.errors import ArtifactError


@pytest.fixture
def folder(tiny_clip_folder: Path, tmp_path: Path) -> Path:
    """A copy of the tiny checkpoint, to be changed."""
    return Path(shutil.copytree(tiny_clip_folder, tmp_path / "clip"))


def edit(file: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def shard(folder: Path) -> list[str]:
    """Save the weights in several files with an index; returns the files' names."""
    CLIPModel.from_pretrained(folder).save_pretrained(folder, max_shard_size="60KB")
    (folder / "model.safetensors").unlink()
    names = sorted(path.name for path in folder.glob("model-*.safetensors"))
    assert len(names) > 2
    return names


def test_missing_tensors_are_named(folder: Path) -> None:
    edit_weights(folder, lambda t: t.pop("visual_projection.weight"))
    with pytest.raises(ArtifactError, match=r"visual_projection\.weight"):
        de.load_model(folder)
    edit_weights(folder, lambda t: [t.pop(name) for name in list(t) if name.startswith("text_model.encoder.layers.1.")])
    with pytest.raises(ArtifactError, match=r"(?i)missing.*layers\.1\."):
        de.load_model(folder)


def test_a_missing_scale_is_missing(folder: Path) -> None:
    """transformers would put its initial value of 14.3 in the place of CLIP's 100."""
    edit_weights(folder, lambda t: t.pop("logit_scale"))
    with pytest.raises(ArtifactError, match=r"(?i)missing.*logit_scale"):
        de.load_model(folder)


def test_further_tensors_are_named(folder: Path) -> None:
    edit_weights(folder, lambda t: t.update({"text_model.extra.weight": torch.ones(2)}))
    with pytest.raises(ArtifactError, match=r"text_model\.extra\.weight"):
        de.load_model(folder)


def test_positions_of_older_checkpoints_are_no_further_tensors(folder: Path, tiny_clip: de.Model) -> None:
    """openai/clip-vit-base-patch32 holds these two."""
    edit_weights(
        folder,
        lambda t: t.update(
            {
                "text_model.embeddings.position_ids": torch.arange(77)[None],
                "vision_model.embeddings.position_ids": torch.arange(17)[None],
            }
        ),
    )
    assert de.load_model(folder).fingerprint == tiny_clip.fingerprint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update({"visual_projection.weight": torch.ones(16, 31)}), r"visual_projection.*16, 31"),
        (lambda t: t.update({"visual_projection.weight": torch.ones(16, 32).long()}), "visual_projection"),
        (lambda t: t["visual_projection.weight"].__setitem__((3, 4), float("nan")), "NaN or infinite in 1 of"),
        (lambda t: t["text_projection.weight"].fill_(float("inf")), "NaN or infinite in 384 of"),
        (lambda t: t["logit_scale"].fill_(100), "logit_scale"),
    ],
    ids=["shape", "type", "nan", "infinite", "scale"],
)
def test_tensors_that_are_not_what_they_should_be(folder: Path, change: Any, message: str) -> None:
    edit_weights(folder, change)
    with pytest.raises(ArtifactError, match=message):
        de.load_model(folder)


def test_half_precision_weights_load_in_full(folder: Path, tiny_clip: de.TowerModel) -> None:
    edit_weights(folder, lambda t: t.update({name: tensor.half() for name, tensor in t.items()}))
    model = de.load_model(folder)
    assert model.dtype == torch.float32
    np.testing.assert_allclose(model.encode_texts("dog"), tiny_clip.encode_texts("dog"), atol=5e-3)


def test_weights_are_not_tied_to_their_file(folder: Path, tiny_clip: de.TowerModel) -> None:
    model = de.load_model(folder)
    (folder / "model.safetensors").write_bytes(b"\0" * 300_000)
    np.testing.assert_array_equal(model.encode_texts("a red dog"), tiny_clip.encode_texts("a red dog"))


def test_loading_uses_up_no_random_numbers(folder: Path) -> None:
    torch.manual_seed(3)
    de.load_model(folder)
    after = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(after, torch.rand(1))


def test_shards_are_read_through_their_index(folder: Path, tiny_clip: de.Model) -> None:
    shard(folder)
    assert de.load_model(folder).fingerprint == tiny_clip.fingerprint


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pytorch_model.bin", r"pytorch_model\.bin"),
        ("../model.safetensors", "in its folder"),
        ("/etc/model.safetensors", "in its folder"),
        ("sub\\\\model.safetensors", "in its folder"),
        ("loop.safetensors", r"loop\.safetensors"),
        ("gone.safetensors", r"gone\.safetensors"),
        ("pipe.safetensors", "ordinary file"),
    ],
)
def test_an_index_names_safetensors_in_its_folder(folder: Path, name: str, message: str) -> None:
    import os

    first = shard(folder)[0]
    shutil.copy(folder / first, folder.parent / "model.safetensors")
    (folder / "loop.safetensors").symlink_to(folder / "loop.safetensors")
    os.mkfifo(folder / "pipe.safetensors")
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    edit(
        folder / "model.safetensors.index.json",
        lambda index: index["weight_map"].update({"visual_projection.weight": name}),
    )
    with pytest.raises(ArtifactError, match=message):
        de.load_model(folder)


def test_a_tensor_in_two_shards_is_refused(folder: Path) -> None:
    first, second, *_ = shard(folder)
    twice = {**load_file(folder / second), **load_file(folder / first)}
    save_file(twice, folder / second)
    with pytest.raises(ArtifactError, match=r"in another file"):
        de.load_model(folder)


def test_pickles_alone_are_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ArtifactError, match=r"pytorch_model\.bin.*pickles"):
        de.load_model(folder)


@pytest.mark.parametrize("entry", ["hidden_size", "intermediate_size", "vocab_size", "max_position_embeddings"])
def test_enormous_sizes_are_compared_with_the_weights_before_memory_is_taken(folder: Path, entry: str) -> None:
    """A width of 100,000 would take 160 GB for one block's MLP alone."""
    edit(folder / "config.json", lambda config: config["text_config"].update({entry: 100_000}))
    with pytest.raises(ArtifactError, match=r"config\.json.*shape.*100000"):
        de.load_model(folder)


@pytest.mark.parametrize(
    ("part", "entry", "value", "message"),
    [
        ("text_config", "num_hidden_layers", 10**9, "hidden_layers is 1000000000"),
        ("text_config", "num_hidden_layers", 3, r"(?i)missing.*layers\.2\."),
        ("text_config", "num_hidden_layers", 1, r"(?i)unexpected.*layers\.1\."),
        ("text_config", "num_attention_heads", 5, r"(?s)config\.json.*multiple"),
        ("text_config", "hidden_act", "swoosh", "swoosh"),
        ("vision_config", "hidden_size", "32", "hidden_size is '32'"),
        ("vision_config", "patch_size", 0, "vision_config.patch_size is 0"),
        ("vision_config", "patch_size", [8, 8], "patch_size is a list"),
        ("vision_config", "patch_size", 64, "patch_embedding"),
        ("vision_config", "num_channels", 1, "num_channels is 1"),
        ("vision_config", "layer_norm_eps", 0, "layer_norm_eps is 0"),
    ],
)
def test_nonsense_in_the_config_is_named(folder: Path, part: str, entry: str, value: Any, message: str) -> None:
    edit(folder / "config.json", lambda config: config[part].update({entry: value}))
    with pytest.raises(ArtifactError, match=message):
        de.load_model(folder)


def test_entries_that_could_load_code_are_left_alone(folder: Path, tiny_clip: de.Model) -> None:
    """Kernels from the hub, quantisers, code of the repository: config.json may ask for none of them."""
    wishes = {
        "attn_implementation": "someone/kernel",
        "_attn_implementation": "someone/kernel",
        "auto_map": {"AutoModel": "evil.Model"},
        "fusion_config": {"a": 1},
        "quantization_config": {"quant_method": "bitsandbytes"},
    }
    edit(folder / "config.json", lambda config: [part.update(wishes) for part in (config, config["text_config"])])
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "someone/else"}')
    assert de.load_model(folder).fingerprint == tiny_clip.fingerprint


def test_older_spellings_of_the_config_are_read(folder: Path, tiny_clip: de.Model) -> None:
    """openai/clip-vit-large-patch14 gives its sizes in `text_config_dict` and `vision_config_dict`."""

    def older(config: dict[str, Any]) -> None:
        for part in ("text_config", "vision_config"):
            config[f"{part}_dict"] = config.pop(part)
            config[part] = {"hidden_size": 7, "num_hidden_layers": 1}

    edit(folder / "config.json", older)
    assert de.load_model(folder).fingerprint == tiny_clip.fingerprint


def test_the_newer_processor_file_is_read(folder: Path, tiny_clip: de.Model) -> None:
    content = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").unlink()
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": content}))
    assert de.load_model(folder).fingerprint == tiny_clip.fingerprint
    (folder / "processor_config.json").write_text(json.dumps({"processor_class": "CLIPProcessor"}))
    with pytest.raises(ArtifactError, match=r"processor_config\.json.*null"):
        de.load_model(folder)


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ("size", {"longest_edge": 32}, "entry 'size.longest_edge'"),
        ("size", -1, "entry size is -1"),
        ("crop_size", {"height": 32, "width": 16}, "32 × 16 is not square"),
        ("crop_size", {"height": 16, "width": 16}, r"16 × 16 .* 32 × 32"),
        ("image_mean", [0.5], "image_mean is a list of 1"),
        ("image_std", [1, 1, 0], r"entry image_std\[2\] is 0"),
        ("resample", 9, "entry resample is 9"),
        ("do_resize", False, "do_resize and do_rescale"),
        ("do_normalize", "no", "entry do_normalize is 'no'"),
        ("rescale_factor", 0.1, r"rescale_factor is 0\.1"),
        ("image_mean", None, "entry image_mean is null"),
    ],
)
def test_nonsense_in_the_preprocessing_is_named(folder: Path, entry: str, value: Any, message: str) -> None:
    edit(folder / "preprocessor_config.json", lambda config: config.update({entry: value}))
    with pytest.raises(ArtifactError, match=message):
        de.load_model(folder)


@pytest.mark.parametrize("entry", ["size", "image_mean", "image_std"])
def test_preprocessing_that_lacks_an_entry(folder: Path, entry: str) -> None:
    edit(folder / "preprocessor_config.json", lambda config: config.pop(entry))
    with pytest.raises(ArtifactError, match=rf"config\.json.*'{entry}'"):
        de.load_model(folder)


def test_preprocessing_without_normalisation_leaves_values_between_0_and_1(folder: Path) -> None:
    edit(folder / "preprocessor_config.json", lambda config: config.update(do_normalize=False))
    white = de.load_model(folder).preprocessing(Image.new("RGB", (40, 40), (255, 255, 255)))
    np.testing.assert_allclose(white, 1)


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "preprocessor_config.json", "tokenizer.json"])
def test_a_missing_file_is_named(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    expected = "has no tokenizer .* Copy these files" if missing == "tokenizer.json" else f"has no {missing}"
    with pytest.raises(ArtifactError, match=expected):
        de.load_model(folder)


def test_damaged_weights_are_named(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ArtifactError, match=r"model\.safetensors"):
        de.load_model(folder)
