"""The head of `lite` against its formula in float64, and the trainer's forward pass against transformers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from deltaenergy.models.lite.model import CosineRange, JointHead, Refiner


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def filled(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return module


def weights(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: tensor.double().numpy() for name, tensor in module.state_dict().items()}


def test_joint_head_follows_the_formula() -> None:
    head, classifier = filled(JointHead(12, 5, 6, 3)), filled(nn.Linear(12, 5))
    features = torch.rand(4, 7, 12, generator=torch.Generator().manual_seed(1))
    w, c, f = weights(head), weights(classifier), features.double().numpy()
    hidden = np.maximum((f - w["mean"]) @ w["down.weight"].T + w["down.bias"], 0)
    g = f + hidden @ w["up.weight"].T
    logits = g @ c["weight"].T + c["bias"]
    beliefs = np.exp(logits - logits.max(-1, keepdims=True))
    beliefs /= beliefs.sum(-1, keepdims=True)
    expected = unit(unit((g - w["mean"]) @ w["look"]) + beliefs @ w["meaning"])
    with torch.inference_mode():
        np.testing.assert_allclose(head(features, classifier).numpy(), expected, atol=2e-5)


def test_refiner_follows_the_formula() -> None:
    refiner = filled(Refiner(5, 6))
    projected = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    w, p = weights(refiner), unit(projected.double().numpy())
    inner = p @ w["down.weight"].T + w["down.bias"]
    gelu = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
    with torch.inference_mode():
        np.testing.assert_allclose(refiner(projected).numpy(), unit(p + gelu @ w["up.weight"].T), atol=2e-5)


@pytest.mark.parametrize(("alpha", "beta"), [(0.25, 0.17), (0.5, 0.1), (0.75, 0.25)])
def test_cosines_become_alpha_cosine_plus_beta_at_unit_length(alpha: float, beta: float) -> None:
    generator = torch.Generator().manual_seed(0)
    pictures, texts = torch.randn(6, 9, generator=generator), torch.randn(5, 9, generator=generator)
    cosines = CosineRange(alpha, beta)
    z, t = cosines.image(pictures), cosines.text(texts)
    torch.testing.assert_close(z.norm(dim=1), torch.ones(6))
    torch.testing.assert_close(t.norm(dim=1), torch.ones(5))
    plain = nn.functional.cosine_similarity(pictures[:, None], texts[None], dim=2)
    torch.testing.assert_close(z @ t.T, alpha * plain + beta)


def test_the_trainers_shared_prefix_gives_the_states_of_transformers() -> None:
    from training.lite import tower
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        vocab_size=50,
        hidden_size=tower.WIDTH,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=tower.HEADS,
        projection_dim=16,
        eos_token_id=49,
        bos_token_id=48,
        pad_token_id=49,
    )
    torch.manual_seed(0)
    model = CLIPTextModelWithProjection(config).eval()
    rows = torch.tensor([[48, 3, 4, 7, 8, 49], [48, 3, 4, 9, 49, 49]])
    table = model.text_model.embeddings.token_embedding.weight
    with torch.inference_mode():
        expected = model(input_ids=rows).text_embeds
        states = tower.run(model, table[rows[0, :3]], table[rows[:, 3:]], torch.tensor([2, 1]))
        torch.testing.assert_close(model.text_projection(states), expected, atol=1e-5, rtol=1e-4)
