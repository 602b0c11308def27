"""The pure functions against NumPy in double precision, worked step by step from the papers' formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaenergy.explanation import grad_cam, occlusion, rollout, value_path


def draw(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape)


def tensors(arrays: list[np.ndarray[Any, Any]]) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in arrays]


def test_rollout_of_two_blocks_worked_by_hand() -> None:
    # One image, two heads, three tokens. ∇A ⊙ A, negative entries cut, mean of the heads:
    first = [[[[0.5, 0.5, 0], [0, 1, 0], [0.2, 0.3, 0.5]], [[1, 0, 0], [0.5, 0.5, 0], [0, 0, 1]]]]
    of_first = [[[[2, -1, 0], [0, 1, 0], [5, 10, 2]], [[-3, 0, 0], [2, 4, 0], [0, 0, -1]]]]
    # Ā_1 = ½ ([[1, 0, 0], [0, 1, 0], [1, 3, 1]] + [[0, 0, 0], [1, 2, 0], [0, 0, 0]])
    second = [[[[0.2, 0.3, 0.5], [1, 0, 0], [0, 1, 0]], [[0.1, 0.1, 0.8], [0, 0, 1], [1, 0, 0]]]]
    of_second = [[[[5, 10, -2], [1, 0, 0], [0, 1, 0]], [[10, 0, 2.5], [0, 0, 1], [1, 0, 0]]]]
    # Row 0 of Ā_2 = ½ ([1, 3, 0] + [1, 0, 2]) = [1, 1.5, 1]; row 0 of 1 + Ā_2 is [2, 1.5, 1].
    # R = (1 + Ā_2)(1 + Ā_1), row 0: 2·[1.5, 0, 0] + 1.5·[0.5, 2.5, 0] + 1·[0.5, 1.5, 1.5]
    expected = [[3 + 0.75 + 0.5, 3.75 + 1.5, 1.5]]
    a, b, of_a, of_b = (torch.tensor(values, dtype=torch.float64) for values in (first, second, of_first, of_second))
    np.testing.assert_allclose(rollout([a, b], [of_a, of_b]), expected, atol=1e-12)
    # Of the last block, the class token's row is enough.
    np.testing.assert_allclose(rollout([a, b[:, :, :1]], [of_a, of_b[:, :, :1]]), expected)


@settings(max_examples=25)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(2, 6), st.integers(0, 10**6))
def test_rollout_is_the_whole_product_of_matrices(blocks: int, heads: int, tokens: int, seed: int) -> None:
    attention = [np.abs(draw(2, heads, tokens, tokens, seed=seed + b)) for b in range(blocks)]
    gradients = [draw(2, heads, tokens, tokens, seed=seed + 100 + b) for b in range(blocks)]
    expected = []
    for image in range(2):
        r = np.eye(tokens)
        for a, g in zip(attention, gradients):
            r = r + np.maximum(a[image] * g[image], 0).mean(axis=0) @ r
        expected.append(r[0])
    np.testing.assert_allclose(rollout(tensors(attention), tensors(gradients)), expected, rtol=1e-10)


@settings(max_examples=25)
@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 4), st.integers(0, 10**6))
def test_grad_cam_by_loops(images: int, channels: int, side: int, seed: int) -> None:
    a, g = draw(images, channels, side, side + 1, seed=seed), draw(images, channels, side, side + 1, seed=seed + 1)
    found = grad_cam(*tensors([a, g])).numpy()
    for n in range(images):
        weights = [g[n, c].sum() / (side * (side + 1)) for c in range(channels)]
        for i in range(side):
            for j in range(side + 1):
                expected = max(0.0, sum(weights[c] * a[n, c, i, j] for c in range(channels)))
                assert found[n, i, j] == pytest.approx(expected, abs=1e-12)


def test_value_path_of_a_cosine_is_the_patch_s_own_similarity() -> None:
    patches, text = draw(2, 5, 4), draw(4, seed=1)
    found = value_path(*tensors([patches, np.stack([text, text])]))
    np.testing.assert_allclose(found, [[u @ text for u in image] for image in patches], rtol=1e-12)


def test_value_path_adds_what_is_said_of_the_patches_themselves() -> None:
    patches, towards, own = draw(2, 3, 4), draw(2, 4, seed=1), draw(2, 3, 4, seed=2)
    expected = [[u @ towards[n] + u @ o for u, o in zip(patches[n], own[n])] for n in range(2)]
    np.testing.assert_allclose(value_path(*tensors([patches, towards, own])), expected, rtol=1e-12)


@pytest.mark.parametrize(("height", "width", "cells"), [(8, 8, 4), (7, 9, 3), (5, 5, 5), (6, 6, 1)])
def test_occlusion_by_covering_each_window(height: int, width: int, cells: int) -> None:
    image, weights = draw(3, height, width), draw(3, height, width, seed=1)
    seen: list[int] = []

    def values_of(images: torch.Tensor) -> torch.Tensor:
        seen.append(len(images))
        return torch.tanh((images * torch.from_numpy(weights)).sum((1, 2, 3)))

    rows = [round(i * height / cells) for i in range(cells + 1)]
    columns = [round(j * width / cells) for j in range(cells + 1)]
    base = np.tanh((image * weights).sum())
    expected = np.zeros((cells, cells))
    for top in range(-1, cells):
        for left in range(-1, cells):
            covered = image.copy()
            inside = [(i, j) for i in (top, top + 1) for j in (left, left + 1) if 0 <= i < cells and 0 <= j < cells]
            for i, j in inside:
                covered[:, rows[i] : rows[i + 1], columns[j] : columns[j + 1]] = 0.25
            for i, j in inside:
                expected[i, j] += (base - np.tanh((covered * weights).sum())) / 4
    found = occlusion(values_of, torch.from_numpy(image), cells=cells, fill=0.25, images_at_once=5)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert sum(seen) == 1 + (cells + 1) ** 2 and max(seen) <= 5


def test_occlusion_finds_the_only_place_that_counts() -> None:
    found = occlusion(lambda images: images[:, 0, 3, 17], torch.ones(3, 28, 28))
    assert divmod(int(found.argmax()), 7) == (0, 4)


def test_occlusion_of_several_numbers_is_a_map_of_each() -> None:
    image, weights = torch.from_numpy(draw(3, 8, 8)), torch.from_numpy(draw(4, 3, 8, 8, seed=1))
    found = occlusion(lambda images: torch.einsum("nchw,dchw->nd", images, weights), image, cells=4)
    assert found.shape == (4, 4, 4)
    for d in range(4):
        alone = occlusion(lambda images, d=d: (images * weights[d]).sum((1, 2, 3)), image, cells=4)  # type: ignore[misc]
        np.testing.assert_allclose(found[..., d], alone, atol=1e-12)
