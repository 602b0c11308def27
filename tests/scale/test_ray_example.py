"""`examples/ray_score.py` in a process, and a Ray, of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import deltaenergy as de
from tests.scale.conftest import Scene
from tests.scale.ray_here import SETTINGS

pytest.importorskip("ray.data", reason="ray is not installed: make test-ray")


def test_the_example(scene: Scene, tmp_path: Path) -> None:
    script = Path(__file__).resolve().parents[2] / "examples" / "ray_score.py"
    places = os.pathsep.join(filter(None, sys.path))
    out = tmp_path / "verdicts.parquet"
    with tempfile.TemporaryDirectory(prefix="de-ray-", ignore_cleanup_errors=True) as folder:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", script, scene.store, scene.detector, out],
            env={**os.environ, **SETTINGS, "PYTHONPATH": places, "RAY_TMPDIR": folder},
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr
    found = de.Detector.load(scene.detector).predict(scene.store)
    unknown = sum(verdict.is_ood for verdict in found)
    counts = {"known": len(found) - unknown, "none of these": unknown, "could not be read": 1}
    assert sorted(done.stdout.splitlines()) == sorted(f"{name}: {count}" for name, count in counts.items() if count)
    scores = {row["path"]: row["score"] for row in pq.read_table(out).to_pylist() if row["error"] is None}
    assert scores == {verdict.path: verdict.score for verdict in found}
