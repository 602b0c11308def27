"""Train the bundled model `lite` from installed packages and WordNet: `python -m training.lite`.

Every stage leaves its result in the work folder and is skipped when that is there, so an interrupted run goes on
where it stopped; `--again STAGE` repeats a stage and those after it. See README.md beside this file.
"""

import argparse
import time
from pathlib import Path

import torch

from training.lite import stages

HERE = Path(__file__).parent


def main() -> None:
    """Run all stages that are not done."""
    parser = argparse.ArgumentParser(prog="python -m training.lite", description=__doc__)
    parser.add_argument("--work", type=Path, default=HERE / "work", help="folder for intermediate results")
    parser.add_argument(
        "--out", type=Path, default=HERE.parents[1] / "src/deltaenergy/models/lite", help="where the model goes"
    )
    parser.add_argument("--steps", type=int, default=stages.STEPS, help="training steps of the text tower")
    parser.add_argument(
        "--pictures", type=Path, help="folder <wnid>_<name>/*.jpg with one ImageNet picture per class, for the adapter"
    )
    parser.add_argument("--again", choices=stages.NAMES, help="repeat this stage and all later ones")
    options = parser.parse_args()
    torch.set_num_threads(min(2, torch.get_num_threads()))
    started = time.monotonic()

    def progress(message: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - started), 60)
        print(f"[{minutes:3d}:{seconds:02d}] {message}", flush=True)

    options.work.mkdir(parents=True, exist_ok=True)
    stages.run(options.work, options.out, options.steps, options.pictures, options.again, progress)


if __name__ == "__main__":
    main()
