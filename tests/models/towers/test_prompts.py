"""Learned prompts against transformers' own 77-token pass, in outputs and in gradients of the context."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from deltaenergy.errors import InputError
from deltaenergy.models.towers.prompts import LearnedPrompts
from deltaenergy.models.towers.text import TextTower
from tests.models.towers.compared import NAMES, normalised, random_context


def full_pass(tower: TextTower, contexts: torch.Tensor, position: str = "end") -> torch.Tensor:
    """All 77 tokens through transformers' model, the context put in by a hook on the token embedding.

    `contexts` is (K, M, W). CoOp's arrangement, written down independently of the implementation.
    """
    tokenizer, m = tower.tokenizer, contexts.shape[1]
    start, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    rows, spots, ends = [], [], []
    for name in NAMES:
        words = tokenizer(name, add_special_tokens=False)["input_ids"]
        dot = tokenizer(".", add_special_tokens=False)["input_ids"]
        gap = [0] * m
        if position == "end":
            row, spot = [start, *gap, *words, *dot, end], list(range(1, 1 + m))
        elif position == "front":
            row, spot = [start, *words, *gap, *dot, end], list(range(1 + len(words), 1 + len(words) + m))
        else:
            half, n = m // 2, len(words)
            row = [start, *gap[:half], *words, *gap[half:], *dot, end]
            spot = [*range(1, 1 + half), *range(1 + half + n, 1 + n + m)]
        ends.append(len(row) - 1)
        spots.append(spot)
        rows.append(row + [end] * (77 - len(row)))

    def put_context(_: nn.Module, __: Any, embedded: torch.Tensor) -> torch.Tensor:
        embedded = embedded.clone()
        for k, spot in enumerate(spots):
            embedded[k, spot] = contexts[k].to(embedded)
        return embedded

    ids = torch.tensor(rows)
    hook = tower.transformer.embeddings.token_embedding.register_forward_hook(put_context)
    try:
        hidden = tower.transformer(input_ids=ids).last_hidden_state
    finally:
        hook.remove()
    return normalised(tower.projection(hidden[torch.arange(len(rows)), ends]))


def assert_agree(
    tower: TextTower, prompts: LearnedPrompts, context: torch.Tensor, tolerance: float, **layout: Any
) -> None:
    mine, theirs = context.clone().requires_grad_(), context.clone().requires_grad_()
    each = theirs if theirs.ndim == 3 else theirs.expand(len(NAMES), -1, -1)
    got, want = prompts(mine), full_pass(tower, each, **layout)
    weights = torch.randn(want.shape, generator=torch.Generator().manual_seed(3), dtype=want.dtype)
    (got * weights).sum().backward()
    (want * weights).sum().backward()
    assert mine.grad is not None and theirs.grad is not None
    assert theirs.grad.abs().max() > 1e-3
    torch.testing.assert_close(got, want, atol=tolerance, rtol=0)
    scale = theirs.grad.abs().max().item()
    torch.testing.assert_close(mine.grad, theirs.grad, atol=tolerance * max(1.0, scale), rtol=0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-5)])
@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
def test_shared_prefix_equals_the_77_token_pass(
    tower_of: Any, dtype: torch.dtype, tolerance: float, activation: str
) -> None:
    tower = tower_of(dtype, activation)
    prompts = LearnedPrompts(tower, NAMES, 16)
    assert prompts.shares_prefix
    assert_agree(tower, prompts, random_context(tower, 16), tolerance)


@pytest.mark.parametrize("length", [0, 1, 5])
def test_shared_prefix_of_any_length(tower_of: Any, length: int) -> None:
    tower = tower_of(torch.float64)
    context = random_context(tower, length)
    each = context.expand(len(NAMES), -1, -1)
    torch.testing.assert_close(LearnedPrompts(tower, NAMES, length)(context), full_pass(tower, each))


def test_chunks_change_neither_outputs_nor_gradients(tower_of: Any) -> None:
    tower = tower_of(torch.float64)
    prompts = LearnedPrompts(tower, NAMES, 4, activation_budget=1)
    assert_agree(tower, prompts, random_context(tower, 4), 1e-11)


def test_chunks_keep_activation_memory_flat(tower_of: Any) -> None:
    """What autograd keeps between forward and backward must not grow with the number of classes."""
    tower = tower_of(torch.float32)

    def kept_bytes(count: int, budget: int) -> int:
        seen: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if not isinstance(tensor, nn.Parameter):
                seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        prompts = LearnedPrompts(tower, [f"dog {i}" for i in range(count)], 8, activation_budget=budget)
        context = random_context(tower, 8).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            prompts(context)
        return sum(seen.values())

    budget = 2**19
    growth_without = kept_bytes(200, 2**40) - kept_bytes(100, 2**40)
    growth_with = kept_bytes(200, budget) - kept_bytes(100, budget)
    assert growth_with < growth_without / 20


def test_a_run_s_size_is_told_beforehand(tower_of: Any) -> None:
    """Tokens counted by hand: [start] and context once if they are shared, else with every name; a full stop, [end]."""
    tower = tower_of(torch.float32)
    names = [len(tower.tokenizer(name, add_special_tokens=False)["input_ids"]) for name in NAMES]
    shared, own = LearnedPrompts(tower, NAMES, 4), LearnedPrompts(tower, NAMES, 4, class_specific=True)
    assert shared.tokens() == 5 + sum(length + 2 for length in names)
    assert own.tokens() == sum(5 + length + 2 for length in names)
    # Three blocks of width 24, 18 floats of four bytes for each.
    assert own.activation_bytes() == own.tokens() * 3 * 24 * 18 * 4 and not own.recomputes()
    small = LearnedPrompts(tower, NAMES, 4, class_specific=True, activation_budget=40_000)
    assert small.recomputes() and 40_000 - 3 * 24 * 18 * 4 < small.activation_bytes() <= 40_000


@pytest.mark.parametrize("position", ["front", "middle", "end"])
def test_fallback_for_class_specific_contexts_and_other_positions(tower_of: Any, position: Any) -> None:
    tower = tower_of(torch.float64)
    prompts = LearnedPrompts(tower, NAMES, 5, name_position=position, class_specific=True)
    assert not prompts.shares_prefix
    assert_agree(tower, prompts, random_context(tower, len(NAMES), 5), 1e-11, position=position)
    shared = LearnedPrompts(tower, NAMES, 5, name_position=position)
    assert_agree(tower, shared, random_context(tower, 5), 1e-11, position=position)
    chunked = LearnedPrompts(tower, NAMES, 5, name_position=position, class_specific=True, activation_budget=1)
    assert_agree(tower, chunked, random_context(tower, len(NAMES), 5), 1e-11, position=position)


@pytest.mark.parametrize("budget", [2**30, 1])
def test_several_contexts_at_once_equal_one_after_the_other(tower_of: Any, budget: int) -> None:
    tower = tower_of(torch.float64)
    contexts = random_context(tower, 3, 6).requires_grad_()
    prompts = LearnedPrompts(tower, NAMES, 6, activation_budget=budget)
    together = prompts.each(contexts)
    separately = torch.stack([full_pass(tower, c.expand(len(NAMES), -1, -1)) for c in contexts])
    torch.testing.assert_close(together, separately)
    weights = torch.randn(together.shape, dtype=torch.float64)
    (mine,) = torch.autograd.grad((together * weights).sum(), contexts)
    (theirs,) = torch.autograd.grad((separately * weights).sum(), contexts)
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("budget", [2**30, 1])
def test_second_derivatives(tower_of: Any, budget: int) -> None:
    """Hessian-vector products against central differences of the gradient."""
    tower = tower_of(torch.float64)
    prompts = LearnedPrompts(tower, NAMES, 3, activation_budget=budget)
    direction = random_context(tower, 3)
    weights = torch.randn(len(NAMES), 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def gradient(context: torch.Tensor, graph: bool) -> torch.Tensor:
        return torch.autograd.grad((prompts(context) * weights).sum().exp(), context, create_graph=graph)[0]

    context = (random_context(tower, 3) * 2).requires_grad_()
    (product,) = torch.autograd.grad((gradient(context, True) * direction).sum(), context)
    h = 1e-5
    numeric = (gradient(context + h * direction, False) - gradient(context - h * direction, False)) / (2 * h)
    torch.testing.assert_close(product, numeric, rtol=1e-6, atol=1e-7)


def test_long_names_are_cut_with_a_warning_and_too_long_contexts_refused(tower_of: Any) -> None:
    tower = tower_of(torch.float32)
    with pytest.warns(UserWarning, match="cut to 59 tokens"):
        prompts = LearnedPrompts(tower, ["dog " * 70, "cat"], 16)
    assert torch.isfinite(prompts(random_context(tower, 16))).all()
    with pytest.raises(InputError, match="leaves no room"):
        LearnedPrompts(tower, ["cat"], 75)
    with pytest.raises(InputError, match="'end', 'front' or 'middle'"):
        LearnedPrompts(tower, ["cat"], 4, name_position="behind")  # type: ignore[arg-type]
