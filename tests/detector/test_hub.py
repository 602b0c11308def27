"""Detectors on the hub, against a stand-in that keeps repositories in a folder; no network is asked."""

from __future__ import annotations

import fnmatch
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import yaml

import deltaenergy as de
from deltaenergy.detector.hub import model_card
from deltaenergy.errors import InputError, ModelUnavailableError, NotFittedError
from tests.colours import ColourModel, paint_sets


class StandIn:
    """Repositories as folders: `create_repo`, `upload_folder` and `snapshot_download`, with their patterns."""

    def __init__(self, root: Path) -> None:
        self.root, self.made = root, []  # type: ignore[var-annotated]

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> None:
        assert exist_ok
        self.made.append((repo_id, private))
        (self.root / repo_id).mkdir(parents=True, exist_ok=True)

    def upload_folder(self, *, repo_id: str, folder_path: str, **options: Any) -> Any:
        repo = self.root / repo_id
        for old in repo.iterdir():
            if any(fnmatch.fnmatch(old.name, pattern) for pattern in options["delete_patterns"]):
                old.unlink()
        for file in Path(folder_path).iterdir():
            if any(fnmatch.fnmatch(file.name, pattern) for pattern in options["allow_patterns"]):
                shutil.copy(file, repo / file.name)
        return SimpleNamespace(commit_url=f"https://hub.invalid/{repo_id}/commit/1")

    def snapshot_download(self, repo_id: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        if not (self.root / repo_id).is_dir() or revision not in (None, "main"):
            raise FileNotFoundError(f"404: {repo_id} at {revision}")
        place = self.root / "cache" / repo_id
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for file in (self.root / repo_id).iterdir():
            if any(fnmatch.fnmatch(file.name, pattern) for pattern in allow_patterns):
                shutil.copy(file, place / file.name)
        return str(place)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn(tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: stand_in)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", stand_in.snapshot_download)
    return stand_in


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    return paint_sets(tmp_path / "sets")


@pytest.fixture
def detector(sets: Path) -> de.Detector:
    classifier = de.ZeroShotClassifier(ColourModel(), ["red", "green", "blue"])
    return de.Detector(classifier, "delta-energy").calibrate(sets / "dark")


def test_there_and_back(hub: StandIn, detector: de.Detector, sets: Path) -> None:
    url = detector.push_to_hub("me/colours", private=True)
    assert url == "https://hub.invalid/me/colours/commit/1" and hub.made == [("me/colours", True)]
    again = de.Detector.load("hf:me/colours", model=detector.classifier.base_model)
    assert list(again.predict(sets / "known")) == list(detector.predict(sets / "known"))
    names = {file.name for file in (hub.root / "me" / "colours").iterdir()}
    assert len(names) == 3 and {"README.md", "detector.json"} < names
    detector.calibrate(sets / "known").push_to_hub("me/colours")
    assert len(list((hub.root / "me" / "colours").glob("*.safetensors"))) == 1, "no tensors of before stay"
    newer = de.Detector.load("hf:me/colours@main", model=detector.classifier.base_model)
    assert newer.threshold == detector.threshold


def test_nothing_but_the_detectors_own_files_is_fetched(hub: StandIn, detector: de.Detector) -> None:
    detector.push_to_hub("me/colours")
    (hub.root / "me" / "colours" / "evil.py").write_text("raise SystemExit")
    (hub.root / "me" / "colours" / "weights.bin").write_bytes(b"pickle")
    de.Detector.load("hf:me/colours", model=detector.classifier.base_model)
    assert {f.suffix for f in (hub.root / "cache" / "me" / "colours").iterdir()} == {".json", ".safetensors"}


def test_mistakes(hub: StandIn, detector: de.Detector, sets: Path) -> None:
    with pytest.raises(ModelUnavailableError, match=r"me/nothing.*404"):
        de.Detector.load("hf:me/nothing")
    detector.push_to_hub("me/colours")
    with pytest.raises(ModelUnavailableError, match="404"):
        de.Detector.load("hf:me/colours@elsewhere")
    for wrong in ("colours", "a/b/c", "me/co lours", ""):
        with pytest.raises(InputError, match="owner/name"):
            detector.push_to_hub(wrong)
        with pytest.raises(InputError, match="owner/name"):
            de.Detector.load(f"hf:{wrong}")
    with pytest.raises(NotFittedError):
        de.Detector(detector.classifier, "mcm").push_to_hub("me/new")
    assert not (hub.root / "me" / "new").exists()


def test_pictures_are_not_published_by_accident(hub: StandIn, detector: de.Detector, sets: Path) -> None:
    detector.calibrate(sets / "dark", keep_images=True)
    with pytest.raises(InputError, match="with_images=True"):
        detector.push_to_hub("me/colours")
    assert not hub.made
    detector.push_to_hub("me/colours", with_images=True)
    assert "contains thumbnails" in (hub.root / "me" / "colours" / "README.md").read_text(encoding="utf-8")


def test_what_cannot_be_sent_is_told(hub: StandIn, detector: de.Detector, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("401 Client Error\nlong")

    monkeypatch.setattr(hub, "create_repo", refuse)
    with pytest.raises(ModelUnavailableError, match="401 Client Error\nSign in"):
        detector.push_to_hub("me/colours")


def test_the_card(hub: StandIn, detector: de.Detector, sets: Path) -> None:
    result = de.evaluate(detector.classifier, "delta-energy", sets / "known", open_sets={"grey": sets / "grey"})
    detector.push_to_hub("me/colours", evaluation=result)
    card = (hub.root / "me" / "colours" / "README.md").read_text(encoding="utf-8")
    front = yaml.safe_load(card.split("---\n")[1])
    assert front["library_name"] == "deltaenergy" and "open-set-recognition" in front["tags"]
    assert "red, green, blue." in card and str(detector.guarantee) in card and "## Limits" in card
    auroc = result.detection[0].metrics["auroc"].value
    assert f"| auroc of delta-energy | known against grey | {100 * auroc:.1f}% |" in card.replace("\\", "")
    assert "Not measured" in model_card(detector, "me/colours")
    code = card.split("```python\n")[1].split("```")[0]
    compile(code, "card", "exec")
    assert 'de.Detector.load("hf:me/colours")' in code


def test_names_are_no_markup_in_a_card() -> None:
    names = ["<script>alert(1)</script>", "a | b\n# heading", "*dog*", "x"]
    detector = de.Detector(de.PrecomputedClassifier(np.eye(4, dtype=np.float32), names), "mcm")
    detector.calibrate(np.eye(4, dtype=np.float32))
    card = model_card(detector, "me/names")
    assert "<script>" not in card and "\n# heading" not in card and "\\*dog\\*" in card
