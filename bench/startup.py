"""Start-up: `import deltaenergy` (goal < 0.3 s) and `deltaenergy --help` (goal < 0.6 s), beside `import numpy`.

And `load_model("lite")` after its imports (goal < 2 s).
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

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


if __name__ == "__main__":
    main()
