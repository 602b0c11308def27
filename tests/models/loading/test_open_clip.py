"""Checkpoints in open_clip's format: its key layout, run by a plain transformer of the tests' own, is the measure."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch.nn import functional as F

import deltaenergy as de
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.models.base import TowerModel
from tests.checkpoints import write_tokenizer

WIDTH, TEXT_WIDTH, DIM, SIDE, PATCH, LENGTH = 32, 24, 16, 32, 8, 20
TEXTS = ["a photo of a dog", "cat", "the red car"]


def write_open_clip(
    folder: Path, *, custom: bool = False, quick: bool = True, bias: bool = False, weights: str = "open_clip_model"
) -> dict[str, torch.Tensor]:
    """A folder as open_clip's push to the hub writes it; returns the tensors."""
    folder.mkdir()
    vocabulary = write_tokenizer(folder)
    generator = torch.Generator().manual_seed(7)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) / math.sqrt(shape[-1])

    def blocks(start: str, width: int) -> dict[str, torch.Tensor]:
        found = {}
        for number in range(2):
            at = f"{start}transformer.resblocks.{number}."
            for norm in ("ln_1", "ln_2"):
                found |= {f"{at}{norm}.weight": 1 + some(width), f"{at}{norm}.bias": some(width)}
            found |= {f"{at}attn.in_proj_weight": some(3 * width, width) * 2, f"{at}attn.in_proj_bias": some(3 * width)}
            found |= {f"{at}attn.out_proj.weight": some(width, width), f"{at}attn.out_proj.bias": some(width)}
            found |= {f"{at}mlp.c_fc.weight": some(4 * width, width), f"{at}mlp.c_fc.bias": some(4 * width)}
            found |= {f"{at}mlp.c_proj.weight": some(width, 4 * width), f"{at}mlp.c_proj.bias": some(width)}
        return found

    text = "text." if custom else ""
    tensors = {
        "visual.class_embedding": some(WIDTH),
        "visual.conv1.weight": some(WIDTH, 3, PATCH, PATCH),
        "visual.positional_embedding": some((SIDE // PATCH) ** 2 + 1, WIDTH),
        "visual.proj": some(WIDTH, DIM),
        **{f"visual.ln_{at}.{part}": 1 + some(WIDTH) for at in ("pre", "post") for part in ("weight", "bias")},
        **blocks("visual.", WIDTH),
        f"{text}token_embedding.weight": some(vocabulary, TEXT_WIDTH) * 3,
        f"{text}positional_embedding": some(LENGTH, TEXT_WIDTH),
        f"{text}text_projection": some(TEXT_WIDTH, DIM),
        **{f"{text}ln_final.{part}": 1 + some(TEXT_WIDTH) for part in ("weight", "bias")},
        **blocks(text, TEXT_WIDTH),
        "logit_scale": torch.tensor(4.1),
    }
    if bias:
        tensors |= {"logit_bias": torch.tensor([-9.5]), "logit_scale": torch.tensor([4.1])}
    save_file(tensors, folder / f"{weights}.safetensors")
    config = {
        "model_cfg": {
            "embed_dim": DIM,
            "vision_cfg": {"image_size": SIDE, "layers": 2, "width": WIDTH, "head_width": 8, "patch_size": PATCH},
            "text_cfg": {
                "context_length": LENGTH, "vocab_size": vocabulary, "width": TEXT_WIDTH, "heads": 4, "layers": 2,
            },
        },
        "preprocess_cfg": {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]},
    }  # fmt: skip
    if quick:
        config["model_cfg"]["quick_gelu"] = True
    if custom:
        config["model_cfg"]["custom_text"] = True
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    return tensors


def run(tensors: dict[str, torch.Tensor], start: str, x: torch.Tensor, heads: int, quick: bool, mask: Any) -> Any:
    """The blocks of open_clip's transformer, by torch's own multi-head attention."""
    for number in range(2):
        at = {key.split(f"resblocks.{number}.")[1]: value for key, value in tensors.items()
              if key.startswith(f"{start}transformer.resblocks.{number}.")}  # fmt: skip
        attention = torch.nn.MultiheadAttention(x.shape[-1], heads, batch_first=True, dtype=torch.float64)
        attention.load_state_dict({key[5:]: value for key, value in at.items() if key.startswith("attn.")})
        h = F.layer_norm(x, x.shape[-1:], at["ln_1.weight"], at["ln_1.bias"])
        x = x + attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        h = F.linear(F.layer_norm(x, x.shape[-1:], at["ln_2.weight"], at["ln_2.bias"]), at["mlp.c_fc.weight"],
                     at["mlp.c_fc.bias"])  # fmt: skip
        h = h * torch.sigmoid(1.702 * h) if quick else F.gelu(h)
        x = x + F.linear(h, at["mlp.c_proj.weight"], at["mlp.c_proj.bias"])
    return x


@torch.no_grad()
def expected_images(tensors: dict[str, torch.Tensor], pixels: torch.Tensor, quick: bool) -> torch.Tensor:
    t = {key: value.double() for key, value in tensors.items()}
    x = F.conv2d(pixels.double(), t["visual.conv1.weight"], stride=PATCH).flatten(2).transpose(1, 2)
    x = torch.cat([t["visual.class_embedding"].expand(len(x), 1, -1), x], dim=1) + t["visual.positional_embedding"]
    x = F.layer_norm(x, (WIDTH,), t["visual.ln_pre.weight"], t["visual.ln_pre.bias"])
    x = run(t, "visual.", x, WIDTH // 8, quick, None)[:, 0]
    x = F.layer_norm(x, (WIDTH,), t["visual.ln_post.weight"], t["visual.ln_post.bias"]) @ t["visual.proj"]
    return F.normalize(x, dim=-1)


@torch.no_grad()
def expected_texts(tensors: dict[str, torch.Tensor], rows: list[list[int]], quick: bool, text: str) -> torch.Tensor:
    """As open_clip has it: padded with 0, pooled at the largest id."""
    t = {key: value.double() for key, value in tensors.items()}
    ids = torch.tensor([row + [0] * (LENGTH - len(row)) for row in rows])
    x = t[f"{text}token_embedding.weight"][ids] + t[f"{text}positional_embedding"]
    mask = torch.full((LENGTH, LENGTH), -math.inf, dtype=torch.float64).triu(1)
    x = run(t, text, x, 4, quick, mask)
    x = F.layer_norm(x, (TEXT_WIDTH,), t[f"{text}ln_final.weight"], t[f"{text}ln_final.bias"])
    x = x[torch.arange(len(rows)), ids.argmax(dim=1)] @ t[f"{text}text_projection"]
    return F.normalize(x, dim=-1)


@pytest.mark.parametrize(
    ("custom", "quick", "weights"),
    [(False, True, "open_clip_model"), (True, False, "model"), (True, True, "open_clip_model")],
)
def test_features_are_those_of_the_layout(tmp_path: Path, custom: bool, quick: bool, weights: str) -> None:
    tensors = write_open_clip(tmp_path / "m", custom=custom, quick=quick, bias=custom, weights=weights)
    model: TowerModel = de.load_model(tmp_path / "m")
    rows = model.text.tokenizer(TEXTS)["input_ids"]
    texts = expected_texts(tensors, rows, quick, "text." if custom else "")
    np.testing.assert_allclose(model.encode_texts(TEXTS), texts, atol=1e-5)
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (3, SIDE, SIDE, 3), dtype=np.uint8)
    pixels = (pictures / 255 - [0.5, 0.4, 0.3]) / [0.2, 0.3, 0.4]
    images = expected_images(tensors, torch.tensor(pixels).permute(0, 3, 1, 2), quick)
    np.testing.assert_allclose(model.encode_images([Image.fromarray(p) for p in pictures]), images, atol=1e-5)
    assert model.logit_scale == pytest.approx(math.exp(4.1), rel=1e-6)
    assert model.logit_bias == (-9.5 if custom else 0)
    assert model.vision is not None and model.feature_dim == DIM


def test_what_openai_keeps_beside_its_weights_is_left_alone(tmp_path: Path) -> None:
    tensors = write_open_clip(tmp_path / "m")
    fingerprint = de.load_model(tmp_path / "m").fingerprint
    more = {"input_resolution": torch.tensor(SIDE), "context_length": torch.tensor(LENGTH)}
    save_file({**tensors, **more}, tmp_path / "m" / "open_clip_model.safetensors")
    assert de.load_model(tmp_path / "m").fingerprint == fingerprint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_open_clip(tmp_path / "m")
    return tmp_path / "m"


def change(folder: Path, part: str, **entries: Any) -> None:
    file = folder / "open_clip_config.json"
    content = json.loads(file.read_text())
    at = (
        content["model_cfg"]
        if part == "model_cfg"
        else content[part]
        if part in content
        else content["model_cfg"][part]
    )
    at.update(entries)
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("part", "entries", "message"),
    [
        ("vision_cfg", {"timm_model_name": "vit_base_patch16_siglip_224"}, "timm_model_name.*google/siglip"),
        ("vision_cfg", {"layers": [3, 4, 6, 3]}, "ResNet.*transformers format"),
        ("vision_cfg", {"attentional_pool": True}, "attentional_pool is 'True'"),
        ("text_cfg", {"hf_model_name": "xlm-roberta-base"}, "hf_model_name"),
        ("text_cfg", {"pool_type": "last"}, "pool_type is 'last'"),
        ("text_cfg", {"no_causal_mask": True}, "no_causal_mask"),
        ("text_cfg", {"something": 1}, "'something' is unknown"),
        ("text_cfg", {"width": "wide"}, "width"),
        ("model_cfg", {"multimodal_cfg": {}}, "multimodal_cfg"),
        ("preprocess_cfg", {"resize_mode": "longest"}, "resize_mode"),
        ("preprocess_cfg", {"size": 64}, "size.* 32"),
    ],
)
def test_other_towers_are_refused_by_name(folder: Path, part: str, entries: dict[str, Any], message: str) -> None:
    change(folder, part, **entries)
    with pytest.raises(ArtifactError, match=message):
        de.load_model(folder)


def test_settings_that_change_the_features_are_used(folder: Path) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 90, 3), dtype=np.uint8))
    plain = de.load_model(folder)
    change(folder, "preprocess_cfg", resize_mode="squash", interpolation="bilinear", size=[SIDE, SIDE])
    squashed = de.load_model(folder)
    assert squashed.preprocessing.resize == (SIDE, SIDE) and squashed.preprocessing.resample == 2
    assert np.abs(plain.encode_images([image]) - squashed.encode_images([image])).max() > 1e-3
    change(folder, "text_cfg", norm_kwargs={"eps": 0.1}, act_kwargs=None)
    assert np.abs(plain.encode_texts("dog") - de.load_model(folder).encode_texts("dog")).max() > 1e-4


def test_missing_parts_are_errors(folder: Path, tmp_path: Path) -> None:
    tensors = write_open_clip(tmp_path / "other")
    del tensors["visual.transformer.resblocks.1.attn.in_proj_bias"]
    save_file(tensors, folder / "open_clip_model.safetensors")
    with pytest.raises(ArtifactError, match=r"layers\.1\.self_attn\.q_proj"):
        de.load_model(folder)
    (folder / "open_clip_model.safetensors").unlink()
    with pytest.raises(ArtifactError, match=r"open_clip_model\.safetensors"):
        de.load_model(folder)
    shutil.copy(tmp_path / "other" / "open_clip_model.safetensors", folder)
    for file in folder.glob("*token*"):
        file.unlink()
    with pytest.raises(ArtifactError, match="has no tokenizer"):
        de.load_model(folder)


@pytest.mark.parametrize("name", ["ViT-B-16.pt", "own.ckpt", "model.safetensors"])
def test_files_are_never_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04 whatever")
    with pytest.raises(InputError, match="pass a folder"):
        de.load_model(tmp_path / name)


def nested(tensors: dict[str, torch.Tensor]) -> torch.nn.Module:
    """A module whose state has these names."""
    root = torch.nn.Module()
    for name, tensor in tensors.items():
        *path, last = name.split(".")
        at = root
        for part in path:
            if not hasattr(at, part):
                at.add_module(part, torch.nn.Module())
            at = getattr(at, part)
        at.register_buffer(last, tensor.clone())
    return root


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["script", "weights"])
def test_the_code_in_the_docs_converts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """It leaves a folder with the numbers of the archive."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
    code = page.split("## Convert")[1].split("```\n")[1]
    monkeypatch.chdir(tmp_path)
    tensors = write_open_clip(tmp_path / "folder")
    if kind == "script":
        torch.jit.save(torch.jit.script(nested(tensors)), "own.pt")
    else:
        torch.save({f"module.{name}": tensor for name, tensor in tensors.items()}, "own.pt")
        code = "\n".join(line.removeprefix("# ") for line in code.splitlines() if "jit" not in line)
    exec(code, {})
    for file in (tmp_path / "folder").iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, "own")
    first, second = de.load_model("folder"), de.load_model("own")
    assert second.fingerprint == first.fingerprint
    np.testing.assert_array_equal(second.encode_texts(TEXTS), first.encode_texts(TEXTS))
