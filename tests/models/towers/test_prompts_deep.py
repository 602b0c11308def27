"""Deep contexts, fixed words between, given names, prompts without full stop: against a literal 77-token pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from deltaenergy.errors import InputError
from deltaenergy.models.towers.prompts import LearnedPrompts
from deltaenergy.models.towers.text import TextTower
from tests.models.towers.compared import NAMES, normalised, random_context


def literal_pass(
    tower: TextTower,
    rows: list[list[Any]],
    deep: torch.Tensor | None = None,
    spots: list[list[int]] | None = None,
) -> torch.Tensor:
    """77 tokens of every prompt through transformers' layers one by one; states at `spots` replaced before each.

    A row holds token ids and vectors, in order. Written down as the methods' papers and code say it.
    """
    end = tower.tokenizer.eos_token_id
    embedded = torch.stack(
        [
            torch.stack(
                [tower.embedding_weight[t] if isinstance(t, int) else t for t in [*row, *[end] * (77 - len(row))]]
            )
            for row in rows
        ]
    )
    x = embedded + tower.transformer.embeddings.position_embedding.weight
    mask = torch.full((77, 77), float("-inf"), dtype=x.dtype).triu(1)[None, None]
    for number, layer in enumerate(tower.transformer.encoder.layers):
        if deep is not None and spots is not None and 0 < number <= len(deep):
            x = x.clone()
            for k, spot in enumerate(spots):
                x[k, spot] = deep[number - 1]
        x = layer(x, attention_mask=mask)
    ends = torch.tensor([len(row) - 1 for row in rows])
    pooled = tower.transformer.final_layer_norm(x)[torch.arange(len(rows)), ends]
    return normalised(tower.projection(pooled))


def words(tower: TextTower, text: str) -> list[int]:
    return list(tower.tokenizer(text, add_special_tokens=False)["input_ids"])


def assert_agree(got: torch.Tensor, want: torch.Tensor, *leaves: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Outputs to 1e-10, gradients of each pair of leaves to 1e-12 of their size."""
    torch.testing.assert_close(got, want, atol=1e-10, rtol=0)
    weights = torch.randn(want.shape, generator=torch.Generator().manual_seed(4), dtype=want.dtype)
    mine = torch.autograd.grad((got * weights).sum(), [leaf for leaf, _ in leaves])
    theirs = torch.autograd.grad((want * weights).sum(), [leaf for _, leaf in leaves])
    for ours, reference in zip(mine, theirs):
        assert reference.abs().max() > 1e-3
        torch.testing.assert_close(ours, reference, atol=1e-12 * max(1.0, reference.abs().max().item()), rtol=0)


def twice(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return tensor.clone().requires_grad_(), tensor.clone().requires_grad_()


@pytest.mark.parametrize("budget", [2**30, 1])
@pytest.mark.parametrize(("depth", "between"), [(2, ""), (3, ""), (3, "of a"), (1, "of a")])
def test_deep_contexts_and_words_between_share_the_prefix(tower_of: Any, depth: int, between: str, budget: int) -> None:
    """MaPLe's [start] v1 v2 `of` `a` name . [end], with states replaced before the blocks 1 … depth − 1."""
    tower = tower_of(torch.float64)
    prompts = LearnedPrompts(tower, NAMES, 2, between=between, activation_budget=budget)
    assert prompts.shares_prefix
    context, deep = twice(random_context(tower, 2)), twice(random_context(tower, depth - 1, 2) * 2)
    start, end, dot = tower.tokenizer.bos_token_id, tower.tokenizer.eos_token_id, words(tower, ".")
    rows = [[start, *context[1], *words(tower, between), *words(tower, name), *dot, end] for name in NAMES]
    got = prompts(context[0], deep=deep[0] if depth > 1 else None)
    want = literal_pass(tower, rows, deep[1], [[1, 2]] * len(NAMES))
    assert_agree(got, want, context, *([deep] if depth > 1 else []))


@pytest.mark.parametrize("position", ["front", "middle", "end"])
@pytest.mark.parametrize("class_specific", [False, True])
def test_deep_contexts_where_no_prefix_is_shared(tower_of: Any, position: Any, class_specific: bool) -> None:
    tower = tower_of(torch.float64)
    prompts = LearnedPrompts(tower, NAMES, 3, name_position=position, class_specific=class_specific)
    shape = (len(NAMES), 3) if class_specific else (3,)
    context, deep = twice(random_context(tower, *shape)), twice(random_context(tower, 2, 3) * 2)
    start, end, dot = tower.tokenizer.bos_token_id, tower.tokenizer.eos_token_id, words(tower, ".")
    rows: list[list[Any]] = []
    spots = []
    for k, name in enumerate(NAMES):
        own, named = list(context[1][k] if class_specific else context[1]), words(tower, name)
        if position == "end":
            rows.append([start, *own, *named, *dot, end])
            spots.append([1, 2, 3])
        elif position == "front":
            rows.append([start, *named, *own, *dot, end])
            spots.append([len(named) + i for i in (1, 2, 3)])
        else:
            rows.append([start, own[0], *named, *own[1:], *dot, end])
            spots.append([1, len(named) + 2, len(named) + 3])
    assert_agree(prompts(context[0], deep=deep[0]), literal_pass(tower, rows, deep[1], spots), context, deep)


@pytest.mark.parametrize("position", ["front", "end"])
def test_without_full_stop(tower_of: Any, position: Any) -> None:
    tower = tower_of(torch.float64)
    context = twice(random_context(tower, 4))
    start, end = tower.tokenizer.bos_token_id, tower.tokenizer.eos_token_id
    rows: list[list[Any]] = []
    for name in NAMES:
        named, own = words(tower, name), list(context[1])
        rows.append([start, *own, *named, end] if position == "end" else [start, *named, *own, end])
    prompts = LearnedPrompts(tower, NAMES, 4, full_stop=False, name_position=position)
    assert_agree(prompts(context[0]), literal_pass(tower, rows), context)


@pytest.mark.parametrize("budget", [2**30, 1])
@pytest.mark.parametrize(("full_stop", "between"), [(True, ""), (False, ""), (True, "of a")])
def test_names_given_as_embeddings(tower_of: Any, full_stop: bool, between: str, budget: int) -> None:
    """ID-like's [start][16][o_j][.][end], with gradients to the o_j."""
    tower = tower_of(torch.float64)
    prompts = LearnedPrompts(tower, 5, 16, full_stop=full_stop, between=between, activation_budget=budget)
    context, names = twice(random_context(tower, 16)), twice(random_context(tower, 5, 1).flip(0) * 3)
    stop = words(tower, ".") if full_stop else []
    start, end = tower.tokenizer.bos_token_id, tower.tokenizer.eos_token_id
    rows = [[start, *context[1], *words(tower, between), *name, *stop, end] for name in names[1]]
    assert_agree(prompts(context[0], names=names[0]), literal_pass(tower, rows), context, names)


def test_names_given_as_the_embeddings_of_words_are_those_words(tower_of: Any) -> None:
    tower, classes = tower_of(torch.float64), ["dog", "cat", "car"]
    context, deep = random_context(tower, 4), random_context(tower, 2, 4)
    ids = [words(tower, name) for name in classes]
    given = LearnedPrompts(tower, 3, 4)
    as_words = LearnedPrompts(tower, classes, 4)(context, deep=deep)
    names = tower.embedding_weight[torch.tensor(ids)]
    torch.testing.assert_close(given(context, names=names, deep=deep), as_words, atol=1e-14, rtol=0)


def test_several_contexts_with_deep_ones_and_given_names(tower_of: Any) -> None:
    tower = tower_of(torch.float64)
    contexts, deep, names = random_context(tower, 3, 4), random_context(tower, 2, 4), random_context(tower, 5, 1) * 3
    given = LearnedPrompts(tower, 5, 4)
    separately = torch.stack([given(context, names=names, deep=deep) for context in contexts])
    torch.testing.assert_close(given.each(contexts, names=names, deep=deep), separately, atol=1e-14, rtol=0)
    in_front = LearnedPrompts(tower, NAMES, 4, name_position="front")
    separately = torch.stack([in_front(context, deep=deep) for context in contexts])
    torch.testing.assert_close(in_front.each(contexts, deep=deep), separately, atol=1e-14, rtol=0)


def test_contexts_of_unequal_length_are_several_prompts(tower_of: Any) -> None:
    """PLOT++'s phrases, each of its own length."""
    tower = tower_of(torch.float64)
    phrases = ["a photo of a", "the photo", "a"]
    ensemble = torch.stack(
        [
            LearnedPrompts(tower, NAMES, len(words(tower, phrase)))(
                tower.embedding_weight[torch.tensor(words(tower, phrase))]
            )
            for phrase in phrases
        ]
    )
    start, end = tower.tokenizer.bos_token_id, tower.tokenizer.eos_token_id
    for phrase, features in zip(phrases, ensemble):
        rows = [[start, *words(tower, f"{phrase} {name}."), end] for name in NAMES]
        torch.testing.assert_close(features, literal_pass(tower, rows), atol=1e-12, rtol=0)


def test_what_does_not_fit_is_refused(tower_of: Any) -> None:
    tower = tower_of(torch.float32)
    prompts = LearnedPrompts(tower, NAMES, 4)
    context = random_context(tower, 4)
    with pytest.raises(InputError, match=r"4 blocks.* has 3"):
        prompts(context, deep=random_context(tower, 3, 4))
    with pytest.raises(AssertionError):
        prompts(context, deep=random_context(tower, 2, 3))
    with pytest.raises(ValueError, match="context has shape"):
        prompts(random_context(tower, 3))
    with pytest.raises(AssertionError, match="names"):
        prompts(context, names=random_context(tower, 7, 1))
    with pytest.raises(ValueError, match="one per class"):
        LearnedPrompts(tower, NAMES, 4, class_specific=True).each(random_context(tower, 2, 4))
    given = LearnedPrompts(tower, 2, 4)
    with pytest.raises(AssertionError, match="names"):
        given(context)
    with pytest.raises(AssertionError):
        given(context, names=random_context(tower, 3, 1))
    with pytest.raises(InputError, match="behind the context"):
        LearnedPrompts(tower, NAMES, 4, between="of a", name_position="front")
    with pytest.raises(InputError, match="leaves no room"):
        LearnedPrompts(tower, ["cat"], 74, full_stop=False, between="of")
    assert torch.isfinite(LearnedPrompts(tower, ["cat"], 74, full_stop=False)(random_context(tower, 74))).all()


@pytest.mark.parametrize("budget", [2**30, 1])
def test_second_derivatives_through_deep_contexts_and_names(tower_of: Any, budget: int) -> None:
    """Hessian-vector products against central differences of the gradient."""
    tower = tower_of(torch.float64)
    given = LearnedPrompts(tower, 3, 2, activation_budget=budget)
    parts = [random_context(tower, 2), random_context(tower, 2, 2), random_context(tower, 3, 1) * 2]
    weights = torch.randn(3, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def gradient(parts: list[torch.Tensor], graph: bool) -> tuple[torch.Tensor, ...]:
        value = (given(parts[0], deep=parts[1], names=parts[2]) * weights).sum().exp()
        return torch.autograd.grad(value, parts, create_graph=graph)

    leaves = [part.requires_grad_() for part in parts]
    direction = [torch.randn(part.shape, generator=torch.Generator().manual_seed(9)).double() for part in parts]
    along = sum((g * d).sum() for g, d in zip(gradient(leaves, True), direction))
    products = torch.autograd.grad(along, leaves)
    h = 1e-5
    ahead, behind = ([part + sign * h * d for part, d in zip(leaves, direction)] for sign in (1, -1))
    for product, up, down in zip(products, gradient(ahead, False), gradient(behind, False)):
        torch.testing.assert_close(product, (up - down) / (2 * h), rtol=1e-5, atol=1e-6)
