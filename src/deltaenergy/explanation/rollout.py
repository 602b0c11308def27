"""Gradient × attention rollout for vision transformers (Chefer, Gur & Wolf, ICCV 2021, eqs. 5 and 6).

    Ā_b = mean_h max(∇A_b ⊙ A_b, 0),   R ← R + Ā_b R  for the blocks b = 1, 2, …, from R = 1

A_b are the attention weights of block b and ∇A_b the gradient of what is explained with respect to them. Row 0 of R
says how much each token entered the class token. Only that row is computed, from the last block to the first,
r ← r + r Ā_b from r = (1, 0, …, 0): the same numbers with one product of a vector and a matrix per block. Learned
tokens that a block replaces have no gradient in the blocks before it, so that nothing flows through them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from deltaenergy.errors import InputError
from deltaenergy.explanation.arrays import alike, check_shape, tensors


def rollout(attention: Sequence[Any], gradients: Sequence[Any]) -> Any:
    """How much each token entered the class token (N, T), itself included; nothing is negative.

    Args:
        attention: of each block, first to last, (N, heads, T, T); of the last block its first rows are enough.
        gradients: of what is explained with respect to each of them.
    """
    if not attention or len(attention) != len(gradients):
        raise InputError(
            f"rollout takes the attention of each block and as many gradients, got {len(attention)} and "
            f"{len(gradients)}."
        )
    row: torch.Tensor | None = None
    for weights, gradient in zip(reversed(attention), reversed(gradients)):
        a, towards = tensors(attention=weights, gradients=gradient)
        check_shape("attention", a, ("N", "heads", "Q", "T"))
        check_shape("gradients", towards, tuple(a.shape))
        mixed = (a * towards.to(a)).clamp(min=0).mean(dim=1)
        if row is None:
            row = torch.zeros(len(mixed), mixed.shape[2]).to(mixed)
            row[:, 0] = 1
        check_shape("attention", mixed, (row.shape[0], "Q", row.shape[1]))
        row = row + torch.einsum("nq,nqt->nt", row[:, : mixed.shape[1]], mixed)
    assert row is not None
    return alike(row, attention[0])
