"""What is finished of a page of explanations, kept beside it until it is whole: a killed run goes on where it stopped.

    page.html.parts/run.json            what the run was asked for; another request begins anew
    page.html.parts/000000.json …       one file per image: which it was, what was said of it, and its part of the page

Only files of these names that say they are ours are ever read or removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from deltaenergy import __version__
from deltaenergy.data.items import ImageItem
from deltaenergy.detector.detector import Detector
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.explanation.explain import Explainer
from deltaenergy.files import FolderLock, hash_value, read_json, write_json

FORMAT = "deltaenergy explanations 1"
_RUN, _NAME = "run.json", re.compile(r"[0-9]{6,}\.json")


@dataclass(frozen=True)
class Finished:
    """One image that is done: which, the verdict's word if there is one, its PNG's name, and its card."""

    image: str
    said: str
    png: str
    card: str


class FinishedImages:
    """The folder of finished images of one run; held for this process while the block runs."""

    def __init__(self, folder: Path, request: Mapping[str, Any]) -> None:
        self.folder = folder
        self._request = hash_value(dict(request))
        self._lock = FolderLock(folder)

    def __enter__(self) -> FinishedImages:
        _check_ours(self.folder)
        self._lock.__enter__()
        if self._kept_request() != self._request:
            self._clear()
            write_json(self.folder / _RUN, {"format": FORMAT, "request": self._request})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._clear()
        self._lock.__exit__(kind, error, trace)
        if kind is None:
            with contextlib.suppress(OSError):  # gone already, or something else is in it, which is not ours to remove
                self.folder.rmdir()

    def get(self, number: int, item: ImageItem) -> Finished | None:
        """The image of that number, if it is done and has not changed since."""
        with contextlib.suppress(ArtifactError, TypeError, OSError):
            found = read_json(self._file(number))
            if isinstance(found, dict) and found.pop("format", None) == FORMAT:
                done = Finished(**found)
                return done if done.image == image_key(item) else None
        return None

    def put(self, number: int, done: Finished) -> None:
        """Keep one."""
        write_json(self._file(number), {"format": FORMAT, **asdict(done)})

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:06d}.json"

    def _kept_request(self) -> str | None:
        try:
            found = read_json(self.folder / _RUN)
        except (ArtifactError, OSError):
            return None
        return str(found.get("request")) if isinstance(found, dict) else None

    def _clear(self) -> None:
        for file in self.folder.iterdir():
            if file.name == _RUN or _NAME.fullmatch(file.name):
                file.unlink()


def _check_ours(folder: Path) -> None:
    """Refuse a folder of that name which holds something else."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(
            f"{folder} is a file, and finished images would be kept in a folder of that name. Move it away."
        )
    names = {file.name for file in folder.iterdir() if not file.name.startswith(".deltaenergy")}
    strange = sorted(name for name in names if name != _RUN and not _NAME.fullmatch(name))
    ours = _RUN not in names and not names
    with contextlib.suppress(ArtifactError, OSError):
        found = read_json(folder / _RUN) if _RUN in names else {}
        ours = ours or (isinstance(found, dict) and found.get("format") == FORMAT)
    if strange or not ours:
        raise InputError(
            f"{folder} holds something that this command did not write, and finished images would be kept there. "
            "Move it away, or give the page another name."
        )


def image_key(item: ImageItem) -> str:
    """Which image it is: its name, and of a file its size and time."""
    parts: list[object] = [item.id]
    if isinstance(item.source, Path):
        with contextlib.suppress(OSError):
            status = item.source.stat()
            parts += [status.st_size, status.st_mtime_ns]
    elif isinstance(item.source, bytes):
        parts.append(hashlib.sha256(item.source).hexdigest())
    return hash_value(parts)


def request_of(explainer: Explainer, **more: Any) -> dict[str, Any]:
    """All that decides what a page of explanations shows of an image."""
    classifier, detector = explainer.classifier, explainer.detector
    tensors = {f"classifier {name}": tensor for name, tensor in classifier.state_dict().items()}
    known: dict[str, Any] = {
        "version": __version__,
        "model": classifier.model.describe(),
        "classes": list(classifier.classes),
        "classifier": classifier.method.spec,
        "method": explainer.method.name,
        "target": explainer.target,
        **more,
    }
    if isinstance(detector, Detector):
        known |= {
            "score": detector.score.spec,
            "guarantee": repr(detector.guarantee),
            "by class": detector.class_thresholds,
        }
        known["kept images"] = None if detector.kept_images is None else len(detector.kept_images)
        known["scores"] = hashlib.sha256(detector.calibration_scores.tobytes()).hexdigest()
        tensors |= {f"score {name}": tensor for name, tensor in detector.score_state.items()}
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].detach().cpu().contiguous().numpy().tobytes())
    return {**known, "tensors": digest.hexdigest()}
