"""The image tower block by block against transformers' own, with and without learned tokens, and its gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from deltaenergy.models.towers.vision import VisionTower
from tests.checkpoints import write_clip

WIDTH, BLOCKS, PATCHES = 32, 4, 16


def normalised(vectors: torch.Tensor) -> torch.Tensor:
    return nn.functional.normalize(vectors, dim=-1)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """transformers' CLIPModel in double precision."""
    from transformers import CLIPModel

    folder = write_clip(tmp_path_factory.mktemp("vision") / "clip", layers=BLOCKS)
    return CLIPModel.from_pretrained(folder).double().eval().requires_grad_(False)


def tower_of(clip: Any, **options: Any) -> VisionTower:
    return VisionTower(clip.vision_model, clip.visual_projection, finish=normalised, **options)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def reference(clip: Any, pixels: torch.Tensor, prompts: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit features and patch states, through transformers' own layers with each block's tokens put in by hand."""
    vision = clip.vision_model
    x = vision.embeddings(pixels)
    if prompts is not None:
        x = torch.cat([x, torch.stack([prompts[0]] * len(x))], dim=1)
    x = vision.pre_layrnorm(x)
    for number, layer in enumerate(vision.encoder.layers):
        if prompts is not None and 0 < number < len(prompts):
            x = x.clone()
            x[:, -prompts.shape[1] :] = prompts[number]
        before, x = x, layer(x, None)
    last = vision.encoder.layers[-1]
    h = last.layer_norm1(before)
    v = h @ last.self_attn.v_proj.weight.T + last.self_attn.v_proj.bias
    y = before + v @ last.self_attn.out_proj.weight.T + last.self_attn.out_proj.bias
    y = vision.post_layernorm(y + last.mlp(last.layer_norm2(y)))
    return normalised(clip.visual_projection(vision.post_layernorm(x[:, 0]))), y[:, 1 : 1 + PATCHES]


def assert_agree(clip: Any, prompts: torch.Tensor | None, **options: Any) -> None:
    """Features, patches, states, and the gradients of pixels and tokens, to rounding."""
    pixels = draw(3, 3, 32, 32, seed=1)
    sides = []
    for run in ("ours", "theirs"):
        x, p = pixels.clone().requires_grad_(), None if prompts is None else prompts.clone().requires_grad_()
        if run == "ours":
            out = tower_of(clip, **options).run(x, p, patches=True, hidden=True)
            assert out.hidden is not None and out.patches is not None
            features, hidden, patches = out.features, out.hidden, out.patches
        else:
            features, hidden = reference(clip, x, p)
            patches = normalised(clip.visual_projection(hidden))
        loss = sum((tensor * draw(*tensor.shape, seed=5)).sum() for tensor in (features, hidden, patches))
        wanted = [x] if p is None else [x, p]
        sides.append((features, hidden, patches, *torch.autograd.grad(loss, wanted)))
    for ours, theirs in zip(*sides):
        assert theirs.abs().max() > 1e-3
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)


def test_without_tokens_it_is_transformers_tower(clip: Any) -> None:
    assert_agree(clip, None)
    pixels = draw(2, 3, 32, 32)
    features = tower_of(clip).run(pixels).features
    theirs = normalised(clip.visual_projection(clip.vision_model(pixel_values=pixels).pooler_output))
    torch.testing.assert_close(features, theirs, atol=1e-12, rtol=0)


@pytest.mark.parametrize(("depth", "count"), [(1, 1), (1, 3), (2, 2), (BLOCKS, 2)])
def test_tokens_stand_at_the_end_and_are_replaced_before_each_block(clip: Any, depth: int, count: int) -> None:
    assert_agree(clip, draw(depth, count, WIDTH, seed=2))


@pytest.mark.parametrize("prompts", [None, draw(3, 2, WIDTH, seed=2)], ids=["bare", "prompted"])
def test_recomputing_changes_neither_values_nor_gradients(clip: Any, prompts: torch.Tensor | None) -> None:
    assert_agree(clip, prompts, activation_budget=1)


def test_recomputing_keeps_less(clip: Any) -> None:
    """What autograd keeps between forward and backward, over the budget and under it."""

    def kept_bytes(budget: int) -> int:
        seen: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if not isinstance(tensor, nn.Parameter):
                seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        prompts = draw(2, 2, WIDTH).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            out = tower_of(clip, activation_budget=budget).run(draw(8, 3, 32, 32), prompts)
        assert out.features.requires_grad
        return sum(seen.values())

    assert kept_bytes(1) < kept_bytes(2**40) / 2


def test_tokens_are_not_nothing_even_if_their_values_are_zero(clip: Any) -> None:
    """They take attention; no tokens at all is the bare tower."""
    tower, pixels = tower_of(clip), draw(2, 3, 32, 32)
    bare = tower.run(pixels).features
    assert torch.equal(tower.run(pixels, torch.zeros(2, 0, WIDTH, dtype=torch.float64)).features, bare)
    assert (tower.run(pixels, torch.zeros(1, 2, WIDTH, dtype=torch.float64)).features - bare).abs().max() > 1e-4


@settings(max_examples=20)
@given(st.integers(1, BLOCKS), st.integers(1, 4), st.integers(1, 4), st.randoms(use_true_random=False))
def test_order_of_tokens_and_neighbours_in_the_batch_are_irrelevant(
    clip: Any, depth: int, count: int, batch: int, random: Any
) -> None:
    tower, pixels, prompts = tower_of(clip), draw(batch, 3, 32, 32), draw(depth, count, WIDTH, seed=3)
    together = tower.run(pixels, prompts, patches=True)
    shuffled = prompts.clone()
    for block in range(depth):
        order = random.sample(range(count), count)
        shuffled[block] = prompts[block, order]
    torch.testing.assert_close(tower.run(pixels, shuffled).features, together.features, atol=1e-12, rtol=0)
    alone = tower.run(pixels[-1:], prompts, patches=True)
    torch.testing.assert_close(alone.features, together.features[-1:], atol=1e-12, rtol=0)
    assert alone.patches is not None and together.patches is not None
    torch.testing.assert_close(alone.patches, together.patches[-1:], atol=1e-12, rtol=0)


def test_only_what_was_asked_for_is_given(clip: Any) -> None:
    tower, pixels = tower_of(clip), draw(1, 3, 32, 32)
    assert (tower.width, tower.blocks, tower.patch_count) == (WIDTH, BLOCKS, PATCHES)
    plain = tower.run(pixels)
    assert plain.patches is None and plain.hidden is None
    hidden = tower.run(pixels, hidden=True)
    assert hidden.patches is None and hidden.hidden is not None and hidden.hidden.shape == (1, PATCHES, WIDTH)
    both = tower.run(pixels, patches=True)
    assert both.hidden is None and both.patches is not None
    assert torch.equal(tower.project(hidden.hidden), both.patches)


def test_every_depth_gets_a_gradient() -> None:
    """At ViT-B/16's 196 patches and 12 blocks, with MaPLe's nine."""
    from transformers import CLIPVisionConfig, CLIPVisionModel

    config = CLIPVisionConfig(hidden_size=48, intermediate_size=96, num_attention_heads=4, patch_size=16)
    tower = VisionTower(CLIPVisionModel(config).eval().requires_grad_(False), nn.Linear(48, 8))
    prompts = torch.zeros(9, 2, 48, requires_grad=True)
    out = tower.run(torch.zeros(2, 3, 224, 224), prompts, patches=True)
    assert out.patches is not None and out.patches.shape == (2, 196, 8)
    out.features.sum().backward()
    assert prompts.grad is not None and (prompts.grad.flatten(1).abs().sum(dim=1) > 0).all()


def test_what_a_run_says_it_keeps_is_about_what_autograd_keeps(clip: Any) -> None:
    """Counted tensor by tensor; the estimate may be off by half, not by a factor."""
    weights = {p.untyped_storage().data_ptr() for p in clip.parameters()}
    tokens = torch.zeros(1, 2, WIDTH, dtype=torch.float64, requires_grad=True)
    claimed = {}
    for budget in (2**40, 0):
        tower = tower_of(clip, activation_budget=budget)
        seen: dict[int, int] = {}

        def count(tensor: torch.Tensor, seen: dict[int, int] = seen) -> torch.Tensor:
            seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            tower.run(draw(8, 3, 32, 32), tokens)
        kept = sum(size for place, size in seen.items() if place not in weights)
        claimed[budget] = tower.kept_bytes(8, 2)
        assert tower.recomputes(8, 2) is (budget == 0)
        # Where blocks are computed again, one of them comes on top of what is kept.
        assert kept < 2 * claimed[budget] and (budget == 0 or claimed[budget] < 2 * kept)
    assert claimed[0] < claimed[2**40] / 2
