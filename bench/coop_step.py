"""One CoOp training step (text features, loss, backward) on a text tower of true ViT-B/16 shapes, random weights.

Peer, in the same run: the 77-token pass over all classes, as CoOp computes it, through transformers' own modules. At
64 and 256 classes: time (goal ≥ 10×), peak memory of the step (goal ≤ 1/8) and the context's gradient from both; at
1,000 classes ours alone, where the 77-token pass needs about 35 GB. Each measurement runs in a process of its own,
so that its peak memory (ru_maxrss, less that before the step) is its own.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from towers import CONTEXT, batch, class_names, coop_pass, initial_context, text_tower

ROUNDS = {("ours", 64): 5, ("peer", 64): 3, ("ours", 256): 3, ("peer", 256): 1, ("ours", 1000): 2}


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(side: str, classes: int) -> None:
    """Run some steps of one side and print their times, memory and gradient as JSON."""
    from deltaenergy.models.towers.prompts import LearnedPrompts

    tower, names = text_tower(), class_names(classes)
    features, labels = batch(classes)
    context = initial_context()
    prompts = LearnedPrompts(tower, names, CONTEXT)
    before, times = peak(), []
    for _ in range(ROUNDS[side, classes]):
        context.grad = None
        began = time.perf_counter()
        texts = prompts(context) if side == "ours" else coop_pass(tower, names, context)
        torch.nn.functional.cross_entropy(100 * features @ texts.T, labels).backward()
        times.append(time.perf_counter() - began)
    gradient = context.grad.flatten().tolist() if context.grad is not None else []
    print(json.dumps({"seconds": statistics.median(times), "bytes": peak() - before, "gradient": gradient}))


def run(side: str, classes: int) -> dict[str, object]:
    command = [sys.executable, str(Path(__file__)), side, str(classes)]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def main() -> None:
    for classes in (64, 256):
        ours, peer = run("ours", classes), run("peer", classes)
        a, b = torch.tensor(ours["gradient"]), torch.tensor(peer["gradient"])
        speed = float(peer["seconds"]) / float(ours["seconds"])  # type: ignore[arg-type]
        memory = float(ours["bytes"]) / float(peer["bytes"])  # type: ignore[arg-type]
        print(
            f"{classes} classes: ours {ours['seconds']:.2f} s, 77 tokens {peer['seconds']:.2f} s: "
            f"{speed:.1f}x faster (goal ≥ 10); memory {float(ours['bytes']) / 2**20:.0f} MB against "  # type: ignore[arg-type]
            f"{float(peer['bytes']) / 2**20:.0f} MB: 1/{1 / memory:.1f} (goal ≤ 1/8); "  # type: ignore[arg-type]
            f"largest difference of gradients {float((a - b).abs().max() / b.abs().max()):.1e} of the largest entry"
        )
    ours = run("ours", 1000)
    print(f"1000 classes: ours {ours['seconds']:.2f} s, memory {float(ours['bytes']) / 2**20:.0f} MB")  # type: ignore[arg-type]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(sys.argv[1], int(sys.argv[2]))
    else:
        main()
