"""Broken checkpoint folders: an error that is meant for the user, or the same scores as before. Never a traceback."""

from __future__ import annotations

import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

import deltaenergy as de
from deltaenergy.errors import ArtifactError, InputError, ModelUnavailableError
from deltaenergy.models.base import TowerModel
from tests.models.loading.broken_folders import all_breaks

# Of some four thousand ways; drawn anew when the ways change.
TRIED = 120
TEXTS = ["a photo of a dog.", "cat", "Red CAR", "x", "Zürich"]


def answers(model: TowerModel) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)) for _ in range(2)]
    return [model.encode_images(images), model.encode_texts(TEXTS), np.array(model.logit_scale)]


def test_broken_folders(tiny_clip_folder: Path, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """A change that gives another model that may well be meant (other heads, another mean) gets another fingerprint,
    by which detectors and feature stores tell it from the one that they were made with.
    """
    whole = de.load_model(tiny_clip_folder)
    expected = answers(whole)
    counts: Counter[str] = Counter()
    for name, break_it in random.Random(1).sample(all_breaks(tiny_clip_folder), TRIED):
        home = tmp_path / "copy"
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(tiny_clip_folder, home)
        break_it(home)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = de.load_model(home)
                same = all(map(np.array_equal, answers(found), expected))
        except (ArtifactError, InputError, ModelUnavailableError) as error:
            assert "copy" in str(error), f"{name}: the error does not say where: {error}"
            counts["refused"] += 1
            continue
        if found.fingerprint == whole.fingerprint:
            assert same, f"{name}: other scores from what claims to be the same model"
        counts["unchanged" if same else "another model"] += 1
    for what, count in counts.items():
        record_property(what, count)
    assert sum(counts.values()) == TRIED
    assert counts["refused"] > TRIED / 2 and counts["unchanged"] > 0
