"""Start-up: `import deltaenergy` (goal < 0.3 s) and `deltaenergy --help` (goal < 0.6 s), beside `import numpy`.

And `load_model("lite")` after its imports (goal < 2 s), and the processor time of `deltaenergy score` on eight images
with `lite`, all imports counted (goal < 4 s), beside that of `import torch` alone. Bytecode is kept, as in an
installation.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from timing import seconds

ROUNDS = 7
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def fresh(code: str) -> float:
    """Median wall-clock time of a new interpreter that runs `code`."""

    def run() -> None:
        subprocess.run(
            [sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, cwd=Path.home(), env=ENVIRONMENT
        )

    run()
    return statistics.median(seconds(run) for _ in range(ROUNDS))


def main() -> None:
    bare = fresh("pass")
    numpy = fresh("import numpy")
    ours = fresh("import deltaenergy")
    shown = fresh("from deltaenergy.cli.main import run; run(['--help'])")
    print(f"bare interpreter {bare:.3f} s, import numpy {numpy:.3f} s")
    print(f"import deltaenergy: {ours:.3f} s, {ours / numpy:.2f}× of import numpy (goal < 0.3 s)")
    print(f"deltaenergy --help: {shown:.3f} s, {shown / numpy:.2f}× of import numpy (goal < 0.6 s)")
    code = (
        "import time, torch\n"
        "from deltaenergy.models.loading import load\n"
        "from deltaenergy.models.lite import model\n"
        "start = time.perf_counter(); load.load_model('lite')\n"
        "print(f'load_model(\"lite\") after its imports: {time.perf_counter() - start:.2f} s (goal < 2 s)')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path.home(), env=ENVIRONMENT)
    torch, used = score_eight()
    print(
        f"deltaenergy score, eight images: {used[0]:.1f}–{used[-1]:.1f} s of processor time in {ROUNDS} runs (goal < 4 "
        f"s), of which import torch alone takes {torch[0]:.1f}–{torch[-1]:.1f} s"
    )


def score_eight() -> tuple[list[float], list[float]]:
    """Processor times of `import torch` and of scoring eight drawn images, in one thread, after a first run."""
    with tempfile.TemporaryDirectory() as folder:
        for i in range(8):
            Image.effect_noise((320, 240), 40 + i).convert("RGB").save(Path(folder) / f"{i}.jpg")
        importing = [sys.executable, "-c", "import torch"]
        scoring = [sys.executable, "-m", "deltaenergy", "score", folder, "--classes", "dog,cat"]
        times = [(processor_time(importing), processor_time(scoring)) for _ in range(ROUNDS + 1)][1:]
    return sorted(time for time, _ in times), sorted(time for _, time in times)


def processor_time(command: list[str]) -> float:
    """User and system time of the command, in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(command, check=True, env={**ENVIRONMENT, "OMP_NUM_THREADS": "1"}, **quiet)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
