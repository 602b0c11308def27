"""The notebooks in examples/ run whole, show what they speak of, and are kept with small outputs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.report.checks import Page

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
SECONDS = 300


def executed(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The outputs of a notebook, run whole in a kernel of its own that sees nothing of the user's settings."""
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    import nbformat

    for variable in ("IPYTHONDIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(folder / variable.lower()))
    monkeypatch.setenv("TMPDIR", str(folder))
    notebook = nbformat.read(ROOT / "examples" / "notebooks" / f"{name}.ipynb", as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}})
    client.execute()
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def printed(outputs: list[Any]) -> str:
    return "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")


def shown(outputs: list[Any], kind: str) -> Page:
    """The one cell that shows an object of this kind."""
    (html,) = [
        output.data["text/html"]
        for output in outputs
        if output.output_type == "execute_result" and f"<b>{kind}</b>" in output.data.get("text/html", "")
    ]
    return Page(html)


def without_traceback(outputs: list[Any]) -> None:
    assert not [output for output in outputs if output.output_type == "error"]
    said = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stderr")
    assert "Traceback" not in said and "demo model" in said


def test_first_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = executed("first_look", tmp_path, monkeypatch)
    without_traceback(outputs)
    verdicts = shown(outputs, "Verdicts")
    assert "none of these10" in verdicts.text and "known6" in verdicts.text
    names = {image["alt"] for image in verdicts.all("img")}
    assert {"brick.png", "chelsea.png"} <= names
    assert "keeps 95% by 120 images" in shown(outputs, "Detector").text
    assert "95% of new images like these are kept on average" in printed(outputs)
    assert "16 of 16 verdicts are right." in printed(outputs)


@pytest.mark.campaign
def test_choose_a_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    outputs = executed("choose_a_score", tmp_path, monkeypatch)
    without_traceback(outputs)
    evaluation = shown(outputs, "Evaluation")
    assert len(evaluation.all("img")) > 4
    assert "5" in shown(outputs, "Choice").text
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 1
    rows = re.findall(r"^([\w-]+) +AUROC ([\d.]+)% \[([\d.]+)%, ([\d.]+)%\]", printed(outputs), re.M)
    for ranking in (rows[:5], rows[5:]):
        assert {name for name, *_ in ranking} == {"delta-energy", "mcm", "energy", "max-logit", "entropy"}
        values = [float(value) for _, value, *_ in ranking]
        assert values == sorted(values, reverse=True) and values[-1] > 80
        assert all(float(low) <= float(value) <= float(high) for _, value, low, high in ranking)


@pytest.mark.campaign
def test_few_shot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = executed("few_shot", tmp_path, monkeypatch)
    without_traceback(outputs)
    found = {
        name: (int(accuracy), float(auroc))
        for name, accuracy, auroc in re.findall(
            r"^(by name|tuned) +accuracy (\d+)%.*AUROC ([\d.]+)%", printed(outputs), re.M
        )
    }
    assert found["tuned"][0] > 90 > 70 > found["by name"][0]
    assert found["tuned"][1] > 95 > 80 > found["by name"][1]
    assert re.search(r"^accuracy, new +\+.* \*$", printed(outputs), re.M)
    assert re.search(r"^kept, other +-.* \*$", printed(outputs), re.M)
    verdicts = shown(outputs, "Verdicts")
    assert "none of these" in verdicts.text and len(verdicts.all("img")) == 12
    assert not list(tmp_path.glob("*.png")), "pictures are in a folder of their own"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_with_small_outputs(path: Path) -> None:
    """So that they can be read where they are browsed (tools/notebooks.py); nothing in them names a machine."""
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(text) < 100_000 and "base64" not in text and "/tmp" not in text
    assert sum(bool(cell["outputs"]) for cell in code) >= 3
    assert all(cell["execution_count"] is None for cell in code)
    assert not [output for cell in code for output in cell["outputs"] if output.get("name") == "stderr"]
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    assert not any(cell["metadata"] for cell in notebook["cells"])


def test_every_notebook_is_run_and_listed() -> None:
    listed = (ROOT / "docs" / "quick-start.md").read_text(encoding="utf-8")
    for path in NOTEBOOKS:
        assert f"../examples/notebooks/{path.name}" in listed
        assert f"test_{path.stem}" in globals()
    assert len(NOTEBOOKS) == 3
