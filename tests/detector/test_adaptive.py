"""The adaptive stream: what order does to it, what it promises nevertheless, and what the command says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deltaenergy import AdaptiveDetector, Model, ZeroShotClassifier
from deltaenergy.errors import InputError

WORDS = ["hut", "moss", "ink", "quilt", "elk", "vase", "yarn", "zinc", "fog", "oat"]
ADAPTERS = ["adaneg(keep=1.0,temperature=0.1,batch=4,words='{}')", "tanl(count=5,temperature=0.1,batch=4,words='{}')"]


@pytest.fixture
def classifier(tiny_clip: Model) -> ZeroShotClassifier:
    return ZeroShotClassifier(tiny_clip, ["dog", "cat", "red car"])


@pytest.fixture
def words(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_text("\n".join(WORDS), encoding="utf-8")
    return path


def features(classifier: ZeroShotClassifier, count: int = 30, seed: int = 0) -> np.ndarray:
    """Images near the classes and near other words, in turn."""
    rng = np.random.default_rng(seed)
    others = classifier.model.encode_texts([f"the nice {word}" for word in WORDS[:3]])
    texts = np.concatenate([classifier.text_features.numpy(), others])
    rows = texts[np.arange(count) % 6] + 0.4 * rng.normal(size=(count, texts.shape[1])) / np.sqrt(texts.shape[1])
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def scores(detector: AdaptiveDetector, rows: np.ndarray) -> np.ndarray:
    return np.array([verdict.score for verdict in detector.stream(rows)])


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_order_changes_scores(classifier: ZeroShotClassifier, words: Path, adapter: str) -> None:
    detector, rows = AdaptiveDetector(classifier, adapter.format(words)), features(classifier)
    forwards, backwards = scores(detector, rows), scores(detector, rows[::-1].copy())[::-1]
    assert np.abs(forwards - backwards).max() > 1e-3
    # The same order gives the same scores: a stream begins with a fresh memory.
    np.testing.assert_array_equal(scores(detector, rows), forwards)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_what_comes_later_changes_nothing(classifier: ZeroShotClassifier, words: Path, adapter: str) -> None:
    detector, rows = AdaptiveDetector(classifier, adapter.format(words)), features(classifier)
    np.testing.assert_allclose(scores(detector, rows[:12]), scores(detector, rows)[:12], rtol=1e-5)
    # Two streams at once do not share a memory.
    turned = rows[::-1].copy()
    first, second = detector.stream(rows), detector.stream(turned)
    mixed = [(one.score, two.score) for one, two in zip(first, second, strict=True)]
    np.testing.assert_array_equal(np.array(mixed).T, [scores(detector, rows), scores(detector, turned)])


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_towers_batch_does_not_matter(classifier: ZeroShotClassifier, words: Path, adapter: str) -> None:
    """Images are judged four at a time however many are encoded at once."""
    from deltaenergy.testing.samples import random_pictures

    detector, pictures = AdaptiveDetector(classifier, adapter.format(words)), random_pictures(11)
    found = [[v.score for v in detector.stream(pictures, batch_size=size)] for size in (1, 3, 11)]
    assert len(found[0]) == 11
    np.testing.assert_allclose(found[1:], [found[0], found[0]], rtol=1e-4)


def test_verdicts_have_no_p_values(classifier: ZeroShotClassifier, words: Path) -> None:
    detector, rows = AdaptiveDetector(classifier, ADAPTERS[0].format(words)), features(classifier)
    stream = detector.stream(rows)
    verdicts = list(stream)
    assert [verdict.path for verdict in verdicts] == [f"row {i}" for i in range(30)]
    assert all(verdict.is_ood is None and verdict.verdict is None for verdict in verdicts)
    assert all(verdict.p_value is None and verdict.score_name.startswith("adaneg(") for verdict in verdicts)
    assert stream.counts.rejected is None
    known = rows[[i for i in range(30) if i % 6 < 3]]
    detector.calibrate(known, keep=0.8)
    own = scores(detector, known)
    # ⌊0.2 · 16⌋ = 3: 13 of the images reach the threshold when they are a separate stream.
    assert detector.threshold == np.sort(own)[2]
    assert sum(not verdict.is_ood for verdict in detector.stream(known)) == 13


@pytest.mark.parametrize(("count", "broken"), [(6, 2), (5, 4)], ids=["amid others", "after a whole group"])
def test_unreadable_images_are_named_and_skipped(
    classifier: ZeroShotClassifier, words: Path, tmp_path: Path, count: int, broken: int
) -> None:
    from deltaenergy.testing.samples import random_pictures

    for i, picture in enumerate(random_pictures(count)):
        picture.save(tmp_path / f"{i}.png")
    (tmp_path / f"{broken}.png").write_bytes(b"no picture")
    stream = AdaptiveDetector(classifier, ADAPTERS[0].format(words)).stream(tmp_path, batch_size=2)
    assert len(list(stream)) == count - 1
    assert [Path(image.id).name for image in stream.unreadable] == [f"{broken}.png"]


def test_calibration_without_images_is_refused(classifier: ZeroShotClassifier, words: Path) -> None:
    detector = AdaptiveDetector(classifier, ADAPTERS[0].format(words))
    with pytest.raises(InputError, match="keep"):
        detector.calibrate(features(classifier), keep=0.0)
    with pytest.raises(InputError, match="at least one readable"):
        detector.calibrate(np.zeros((0, classifier.model.feature_dim), np.float32))
