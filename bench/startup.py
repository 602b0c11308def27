"""Start-up: `import deltaenergy` (goal < 0.3 s) and `deltaenergy --help` (goal < 0.6 s), beside `import numpy`.

And `load_model("lite")` after its imports (goal < 2 s), and the processor time of `deltaenergy score` on eight pictures
with `lite`, all imports counted (goal < 4 s).
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


def fresh(code: str) -> float:
    """Median wall-clock time of a new interpreter that runs `code`."""

    def run() -> None:
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, cwd=Path.home())

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
        "import time, torch, transformers\n"
        "from transformers import CLIPTextModelWithProjection, AutoTokenizer\n"
        "from deltaenergy.models import loading\n"
        "from deltaenergy.models.lite import model\n"
        "start = time.perf_counter(); loading.load_model('lite')\n"
        "print(f'load_model(\"lite\") after its imports: {time.perf_counter() - start:.2f} s (goal < 2 s)')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path.home())
    used = score_eight()
    print(f"deltaenergy score, eight pictures: {used:.1f} s of processor time (goal < 4 s)")


def score_eight() -> float:
    """Processor time of the second of two runs on eight drawn pictures, in one thread."""
    with tempfile.TemporaryDirectory() as folder:
        for i in range(8):
            Image.effect_noise((320, 240), 40 + i).convert("RGB").save(Path(folder) / f"{i}.jpg")
        command = [sys.executable, "-m", "deltaenergy", "score", folder, "--classes", "dog,cat"]
        for _ in range(2):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(
                command,
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
