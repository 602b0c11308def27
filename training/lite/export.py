"""Write the finished model: float16 weights, settings, tokenizer."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from training.lite import tokens
from training.lite.joint import DIMENSIONS
from training.lite.tower import POSITIONS, text_config


def write(
    out: Path,
    tower: nn.Module,
    refiner: nn.Module,
    tokenizer: Tokenizer,
    head: dict[str, Tensor],
    cosines: tuple[float, float],
    progress: Callable[[str], None],
) -> None:
    """All files of the model into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    weights = {f"text.{name}": tensor for name, tensor in tower.state_dict().items()}
    weights |= {f"refiner.{name}": tensor for name, tensor in refiner.state_dict().items()}
    weights |= {f"head.{name}": tensor for name, tensor in head.items()}
    halves = {name: tensor.detach().to(torch.float16).contiguous() for name, tensor in weights.items()}
    save_file(halves, out / "weights.part", metadata={"format": "pt"})
    (out / "weights.part").chmod(0o644)
    (out / "weights.part").replace(out / "weights.safetensors")
    alpha, beta = cosines
    config = {
        "dimensions": DIMENSIONS,
        "adapter": len(head["down.bias"]),
        "alpha": round(alpha, 4),
        "beta": round(beta, 4),
        "logit_scale": 100.0,
        "text_config": text_config(tokenizer),
    }
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tokens.save(tokenizer, out, POSITIONS)
    size = (out / "weights.safetensors").stat().st_size / 1e6
    progress(f"export: {out / 'weights.safetensors'}, {size:.1f} MB")
