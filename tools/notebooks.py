"""Run the notebooks in examples/ and keep their small outputs, so that they can be read without being run.

    python tools/notebooks.py [NAME …]

Kept are printed text, objects as one line, tables, and figures below `LARGEST` bytes; images and notes on standard
error are not. Needs nbclient and ipykernel (extra `dev`).
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbclient
import nbformat

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "notebooks"
# In base64, of one output.
LARGEST = 60_000


def small_outputs(outputs: list[Any]) -> list[dict[str, Any]]:
    """The outputs worth keeping."""
    kept: list[dict[str, Any]] = []
    for output in outputs:
        if output.output_type == "stream" and output.name == "stdout":
            kept.append({"name": "stdout", "output_type": "stream", "text": output.text.splitlines(keepends=True)})
        elif output.output_type in ("execute_result", "display_data"):
            data = {kind: text for kind, text in output.data.items() if len(text) <= LARGEST and "base64," not in text}
            entry = {"data": data, "metadata": {}, "output_type": output.output_type}
            kept.append(entry | ({"execution_count": None} if output.output_type == "execute_result" else {}))
    return kept


def main(names: list[str]) -> None:
    """Run each notebook in an empty folder, and write it back."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute()
        written = json.loads(path.read_text(encoding="utf-8"))
        for cell, run in zip(written["cells"], notebook.cells, strict=True):
            if cell["cell_type"] == "code":
                cell["outputs"], cell["execution_count"] = small_outputs(run.outputs), None
        path.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
