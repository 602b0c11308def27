"""gl-mcm's patch maximum for 32 images of 196 patches (ViT-B/16) and 1,000 classes.

Peer, measured in the same run: the usual form, which makes all images × patches × classes probabilities, copies them
to host memory and takes the maximum there. On a CPU the copy stays within memory, and the matrix product before the
maximum, which both need, takes most of the time; so the part after the product is also measured alone.
"""

from __future__ import annotations

import numpy as np
import torch

from deltaenergy.scores import local_mcm
from timing import alternate, report

IMAGES, PATCHES, DIMENSION, CLASSES = 32, 196, 512, 1_000


def on_the_host(similarities: torch.Tensor) -> np.ndarray:
    """Every probability as a NumPy array, then one maximum."""
    probabilities = similarities.softmax(dim=-1)
    return np.max(probabilities.to("cpu", copy=True).numpy(), axis=(1, 2))


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    patches = torch.nn.functional.normalize(torch.randn(IMAGES, PATCHES, DIMENSION, device=device), dim=-1)
    texts = torch.nn.functional.normalize(torch.randn(CLASSES, DIMENSION, device=device), dim=-1)

    def ours() -> np.ndarray:
        return local_mcm(patches, lambda block: block @ texts.T, CLASSES).cpu().numpy()

    with torch.inference_mode():
        similarities = patches @ texts.T
        difference = np.abs(ours() - on_the_host(similarities)).max()
        total = alternate(ours, lambda: on_the_host(patches @ texts.T))
        # The identity instead of the product: blocks of existing similarities.
        part = alternate(
            lambda: local_mcm(similarities, lambda block: block, CLASSES).cpu(), lambda: on_the_host(similarities)
        )
    report(f"gl-mcm on {device}: host copy / reduction in blocks, with the product", total, "speed-up", goal="> 1")
    report(f"gl-mcm on {device}: host copy / reduction in blocks, without it", part, "speed-up", goal="> 1")
    whole = 4 * IMAGES * PATCHES * CLASSES / 2**20
    print(f"copied to the host: {whole:.1f} MB → {4 * IMAGES / 1024:.2f} kB; largest difference {difference:.1e}")


if __name__ == "__main__":
    main()
