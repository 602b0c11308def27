"""The words of `neglabel:quick` and `delta-energy+words` through a text tower of ViT-B/16's shape (random weights).

ImageNet's 998 names, one prompt each, must take less than 30 s on two cores. Peer: a prompt of NegLabel's whole pool of
70,794, of which a sample is run in the same run; names should cost no more (goal ≤ 1).
"""

from __future__ import annotations

import random
import statistics

import torch

from deltaenergy.scores.negatives.competing import candidates
from deltaenergy.scores.negatives.mining import MiningSettings, prompts_of
from deltaenergy.scores.negatives.pools import Pool, wordnet_pool
from text_truncated import make_tower
from timing import Ratio, alternate, report

WORDS, SAMPLE = 998, 1_000


def main() -> None:
    quick = [texts[0] for texts in prompts_of(Pool(candidates()), MiningSettings())]
    everything = [texts[0] for texts in prompts_of(wordnet_pool(), MiningSettings())]
    sample = random.Random(0).sample(everything, SAMPLE)
    tower = make_tower()
    with torch.inference_mode():
        times = alternate(lambda: tower.project(quick), lambda: tower.project(sample), rounds=3)
    per_prompt = Ratio([t / WORDS for t in times.ours], [t / SAMPLE for t in times.peer])
    report("one prompt: of the quick pool / of the whole pool", per_prompt, "time", goal="≤ 1")
    seconds, whole = statistics.median(times.ours), statistics.median(per_prompt.peer) * len(everything)
    print(
        f"{WORDS:,} prompts: {seconds:.1f} s (goal < 30 s) on {torch.get_num_threads()} threads; the whole pool of "
        f"{len(everything):,}, extrapolated: {whole / 60:.1f} min, {whole / seconds:.0f} times as long"
    )


if __name__ == "__main__":
    main()
