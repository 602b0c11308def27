"""Bootstrap resamples of images, as counts of how often each is drawn.

A resample of n images draws n of them with replacement: the counts are Multinomial(n; 1/n, …, 1/n). Random access
beyond the processor's cache is slow, so images are drawn piece by piece:

    (m_1, …, m_k) ~ Multinomial(n; n_1/n, …, n_k/n)      how many of the draws fall into each piece of n_p images
    the m_p draws of a piece are independent and uniform over its n_p images

which is the same distribution, because draws are independent and uniform within a piece.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# How often each image is drawn, a row for each resample.
ResampleCounts = npt.NDArray[np.int32]

# Images per piece. A power of two, so bits of a random number are a uniform draw; small enough for the counts to stay
# in the cache.
PIECE = 2**14
# Draws that one random number of 64 bits is enough for.
_IN_ONE = 4


def draw(images: int, rows: int, rng: np.random.Generator) -> ResampleCounts:
    """`rows` resamples of `images`. Drawing them one at a time or all at once gives the same result."""
    if images <= PIECE:
        drawn = rng.integers(images, size=(rows, images))
        drawn += np.arange(rows)[:, None] * images
        return np.bincount(drawn.ravel(), minlength=rows * images).astype(np.int32).reshape(rows, images)
    ends = np.append(np.arange(PIECE, images, PIECE), images)
    shares = np.diff(ends, prepend=0) / images
    counts = np.empty((rows, images), np.int32)
    for row in counts:
        for end, draws in zip(ends.tolist(), rng.multinomial(images, shares).tolist()):
            start = (end - 1) // PIECE * PIECE
            row[start:end] = _piece(end - start, draws, rng)
    return counts


def _piece(images: int, draws: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw `draws` images of one piece."""
    if images < PIECE:  # the last one
        return np.bincount(rng.integers(images, size=draws), minlength=images)
    bits = rng.bit_generator.random_raw(-(-draws // _IN_ONE)).view(np.uint16)[:draws]
    return np.bincount(bits & np.uint16(PIECE - 1), minlength=PIECE)
