"""The monitor: false alarms and delays by simulation, what it refuses, what it remembers, tables and files."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deltaenergy as de
from deltaenergy.detector.verdict import verdict_columns
from deltaenergy.detector.verdicts import Verdicts
from deltaenergy.errors import ArtifactError, InputError, NotFittedError
from deltaenergy.files.artifact import sealed
from deltaenergy.monitor.evidence import log_rate_evidence
from tests.detector.made import made
from tests.monitor.made import CLASSES, ids_of, labels_of, make_detector

# The streams of these tests are drawn with fixed seeds: nothing here can fail by chance.


def fed(seed: int, known: int, images: int, unknown: float, **options: Any) -> de.Monitor:
    """A monitor after images of which the share `unknown` lies four deviations lower."""
    rng = np.random.default_rng(seed)
    detector = make_detector(rng.normal(size=known))
    scores = rng.normal(size=images) - 4.0 * (rng.random(images) < unknown)
    return de.Monitor(detector, **options).observe(ids_of(images), labels_of(images), scores)


@pytest.mark.parametrize("known", [60, 400])
def test_false_alarms_stay_within_their_bound(known: int) -> None:
    """120 streams of known images, for two bounds. Of a monitor at the first, 24 would raise an alarm in the mean."""
    for alpha in (0.15, 0.3):
        alarms = [fed(seed, known, 150, 0.0, alpha=alpha, delta=0.05).changed for seed in range(120)]
        assert sum(alarms) / len(alarms) <= alpha + 0.05
    assert any(alarms), "a bound that is never used would be no test of it"


def test_a_reference_that_does_not_grow_would_break_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why p-values against the calibration images alone are not offered: in this very test they fail."""
    from deltaenergy.monitor.evidence import ScoreCells

    def fixed(self: ScoreCells, scores: Any) -> Any:
        found = []
        for score in scores:
            self.counts[:] = 0
            found.append(grows(self, np.array([score]))[0])
        return np.array(found)

    grows = ScoreCells.p_values
    monkeypatch.setattr(ScoreCells, "p_values", fixed)
    alarms = [fed(seed, 60, 1000, 0.0, alpha=0.15, delta=0.05).alarms["shift"] is not None for seed in range(20)]
    assert sum(alarms) / len(alarms) > 0.2


@pytest.mark.parametrize(("unknown", "within"), [(1.0, 12), (0.2, 300)])
def test_a_change_is_found(unknown: float, within: int) -> None:
    for seed in range(5):
        monitor = fed(seed, 500, within, unknown)
        assert monitor.changed and str(monitor.status).startswith("The images have changed")


def test_a_change_after_a_long_quiet_time_is_found_soon() -> None:
    """3,000 known images, then 20% unknown; three delays later, bets from the first image have not found it."""
    quiet, images = 3000, 3400
    for seed in range(5):
        rng = np.random.default_rng(seed)
        detector = make_detector(rng.normal(size=500))
        scores = rng.normal(size=images)
        scores[quiet:] -= 4.0 * (rng.random(images - quiet) < 0.2)
        monitor = de.Monitor(detector).observe(ids_of(images), labels_of(images), scores)
        delay = min(number for number in monitor.alarms.values() if number is not None) - quiet
        assert 0 < delay <= 60
        late = quiet + 3 * delay
        assert log_rate_evidence(int(detector.rejects(scores[:late]).sum()), late, monitor.bound) < monitor.alarm_level


def test_one_change_has_one_time() -> None:
    """Unknown images come from the 111th on, and more of them later: the alarm tells of the first change."""
    rng = np.random.default_rng(0)
    share = np.repeat([0.0, 0.25, 0.9], [110, 200, 300])
    scores = rng.normal(size=610) - 4.0 * (rng.random(610) < share)
    monitor = de.Monitor(make_detector(rng.normal(size=300)))
    monitor.observe(ids_of(310), labels_of(310), scores[:310])
    first = monitor.status.since
    assert first is not None and 90 <= first <= 140
    monitor.observe(ids_of(300, 310), labels_of(300), scores[310:])
    assert monitor.status.since == first


def test_the_time_of_a_small_shift_is_found_by_the_scores() -> None:
    """Half a deviation lower after 600 images, which hardly moves the rate."""
    found = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        monitor = de.Monitor(make_detector(rng.normal(size=500)))
        monitor.observe(ids_of(1200), labels_of(1200), rng.normal(size=1200) - np.repeat([0.0, 0.5], 600))
        assert monitor.since is not None and monitor.since == monitor.status.since
        found.append(monitor.since)
    assert 560 <= np.median(found) <= 640


def test_a_small_shift_is_found_by_the_scores_before_the_rate() -> None:
    """A third of a deviation lower: hardly more images below the threshold, but all scores are lower."""
    rng = np.random.default_rng(1)
    monitor = de.Monitor(make_detector(rng.normal(size=1000)))
    monitor.observe(ids_of(600), labels_of(600), rng.normal(-0.35, 1, size=600))
    assert monitor.alarms["shift"] is not None and monitor.alarms["rate"] is None
    since = monitor.since
    monitor.observe(ids_of(200), labels_of(200), rng.normal(-4, 1, size=200))
    assert monitor.alarms["rate"] is not None and monitor.since == since, "the first alarm says when"


def test_the_alarm_is_raised_by_the_first_image_whose_evidence_reaches_two_over_alpha() -> None:
    detector = make_detector(np.arange(100.0))
    monitor = de.Monitor(detector, alpha=0.1)
    assert monitor.alarm_level == pytest.approx(math.log(20))
    for number in range(1, 30):
        monitor.observe(["x.jpg"], ["dog"], [-5.0])
        status = monitor.status
        for test in ("rate", "shift"):
            reached = status.evidence[test] >= math.log10(20)
            assert (status.alarms[test] is not None) == reached
            if reached and status.alarms[test] == number:
                assert status.highest[test] == pytest.approx(status.evidence[test])
    assert all(number is not None for number in monitor.alarms.values())
    raised = dict(monitor.alarms)
    monitor.observe(ids_of(500), labels_of(500), np.full(500, 50.0))
    assert monitor.changed and monitor.alarms == raised, "an alarm stays"
    assert monitor.status.evidence["rate"] < monitor.status.highest["rate"]


def test_what_cannot_be_watched_is_refused() -> None:
    detector = make_detector(np.arange(60.0))
    for options, word in (({"alpha": 0}, "alpha"), ({"delta": 1.0}, "delta"), ({"alpha": True}, "alpha")):
        with pytest.raises(InputError, match=word):
            de.Monitor(detector, **options)
    with pytest.raises(InputError, match="seed"):
        de.Monitor(detector, seed=-1)
    with pytest.raises(InputError, match="needs a Detector"):
        de.Monitor("detector/")  # type: ignore[arg-type]
    with pytest.raises(NotFittedError):
        de.Monitor(de.Detector(detector.classifier, "max-logit"))
    features = np.eye(3, dtype=np.float32)[np.arange(180) % 3]
    by_class = de.Detector(detector.classifier, "max-logit").calibrate(
        features, by_class=True, labels=[CLASSES[i % 3] for i in range(180)]
    )
    with pytest.raises(InputError, match="by_class"):
        de.Monitor(by_class)
    trained = de.Detector(detector.classifier, "max-logit").calibrate(features[:9], 0.5, trained=True)
    with pytest.raises(InputError, match="other images"):
        de.Monitor(trained)
    monitor = de.Monitor(detector)
    with pytest.raises(InputError, match="'fish' is not a class"):
        monitor.observe(["a"], ["fish"], [1.0])
    with pytest.raises(InputError, match="one id, label and score"):
        monitor.observe(["a"], ["dog", "cat"], [1.0])
    assert monitor.images == 0
    detector.calibration = make_detector(np.arange(50.0)).calibration
    with pytest.raises(InputError, match="recalibrated"):
        monitor.observe(["a"], ["dog"], [1.0])


def test_verdicts_streams_and_images_are_looked_at_in_order(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 3)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    detector = de.Detector(de.PrecomputedClassifier(np.eye(3, dtype=np.float32), CLASSES), "max-logit")
    detector.calibrate(features[:100])
    found = detector.predict(features[100:])
    one, two, three = (de.Monitor(detector) for _ in range(3))
    one.add(found)
    two.watch(features[100:], batch_size=7)
    three.add(detector.stream(features[100:]))
    assert one.flagged == sum(verdict.is_ood for verdict in found) > 0
    assert one.status == two.status == three.status
    assert [seen.number for seen in one.history.flagged] == [
        number for number, verdict in enumerate(found, start=1) if verdict.is_ood
    ]


@pytest.fixture
def scored() -> tuple[de.Detector, Verdicts]:
    rng = np.random.default_rng(5)
    detector = make_detector(rng.normal(size=80))
    scores = rng.normal(-0.2, 1, size=40)
    p_values, unknown = detector.p_values(scores), detector.rejects(scores)
    paths, labels = [f"{i}.jpg" for i in range(40)], [CLASSES[i % 3] for i in range(40)]
    return detector, made(paths, labels, scores.tolist(), unknown.tolist(), p_values.tolist())


def test_tables_say_the_same_as_verdicts(scored: tuple[de.Detector, Verdicts], tmp_path: Path) -> None:
    from deltaenergy.detector.verdict_files import write_table

    detector, found = scored
    expected = de.Monitor(detector).add(found).status
    rows = found.rows()
    for ending in (".csv", ".jsonl", ".parquet"):
        write_table(tmp_path / f"table{ending}", [rows], verdict_columns())
        assert de.Monitor(detector).read(tmp_path / f"table{ending}").status == expected
    assert de.Monitor(detector).read(found.to_table()).status == expected
    assert de.Monitor(detector).read(found.to_pandas()).status == expected


def test_tables_of_other_detectors_and_no_verdicts_are_refused(scored: tuple[de.Detector, Verdicts]) -> None:
    _, found = scored
    other = make_detector(np.random.default_rng(6).normal(size=80))
    monitor = de.Monitor(other)
    with pytest.raises(InputError, match="not this detector's"):
        monitor.read(found.to_table())
    with pytest.raises(InputError, match="no column 'score'"):
        monitor.read(found.to_table().drop_columns(["score"]))
    with pytest.raises(InputError, match=r"no p-value for 0\.jpg"):
        monitor.read(found.to_table().drop_columns(["p_value"]))
    assert monitor.images == 0


def test_a_state_goes_on_where_it_was(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    detector = make_detector(rng.normal(size=90).round(1))
    scores = rng.normal(-0.4, 1, size=900).round(1)
    scores[17] = math.nan
    whole = de.Monitor(detector, alpha=0.1, seed=3).observe(ids_of(900), labels_of(900), scores)
    path = tmp_path / "deep" / "state.json"
    with de.Monitor.open(path, detector, alpha=0.1, seed=3) as monitor:
        monitor.observe(ids_of(200), labels_of(200), scores[:200])
    again = de.Monitor.load(path, detector)
    assert math.isnan(next(seen.score for seen in again.history.flagged if seen.number == 18))
    with de.Monitor.open(path, detector) as monitor:
        labels = labels_of(900)[200:]
        monitor.observe(ids_of(700, 200), labels, scores[200:])
    found = de.Monitor.load(path, detector)
    assert found.status == whole.status and found.changed
    assert found.restarts is not None and whole.restarts is not None
    assert all(np.array_equal(one.logs, whole.restarts[test].logs) for test, one in found.restarts.items())
    assert found.history.changes() == whole.history.changes()
    assert repr(found.history.flagged) == repr(whole.history.flagged)
    assert [b.images for b in found.history.blocks] == [b.images for b in whole.history.blocks]
    found.observe(["n"], ["dog"], [0.1])
    whole.observe(["n"], ["dog"], [0.1])
    assert found.status == whole.status


def test_a_state_stays_small(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    monitor = de.Monitor(make_detector(rng.normal(size=5000)))
    monitor.observe(ids_of(20_000), labels_of(20_000), rng.normal(-1, 1, 20_000))
    monitor.save(tmp_path / "state.json")
    assert (tmp_path / "state.json").stat().st_size < 50_000
    assert len(monitor.history.blocks) <= 128 and sum(b.images for b in monitor.history.blocks) == 20_000


def test_the_state_of_another_detector_is_refused_and_left(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    detector, other = make_detector(rng.normal(size=50)), make_detector(rng.normal(size=50))
    path = tmp_path / "state.json"
    de.Monitor(detector).save(path)
    before = path.read_bytes()
    for use in (lambda: de.Monitor.load(path, other), lambda: de.Monitor(other).save(path)):
        with pytest.raises(ArtifactError, match="another detector"):
            use()
    with pytest.raises(ArtifactError, match="another detector"), de.Monitor.open(path, other):
        pass
    assert path.read_bytes() == before
    with pytest.raises(InputError, match="started with alpha"), de.Monitor.open(path, detector, alpha=0.2):
        pass


def test_files_that_are_not_ours_stay(tmp_path: Path) -> None:
    detector = make_detector(np.arange(50.0))
    for text in ("mine", "{}", '{"format": "deltaenergy detector 2"}'):
        path = tmp_path / "state.json"
        path.write_text(text)
        with pytest.raises(ArtifactError):
            de.Monitor(detector).save(path)
        with pytest.raises(ArtifactError), de.Monitor.open(path, detector):
            pass
        assert path.read_text() == text


def test_a_failing_block_without_images_leaves_no_state(tmp_path: Path) -> None:
    detector = make_detector(np.arange(50.0))
    with pytest.raises(ZeroDivisionError), de.Monitor.open(tmp_path / "state.json", detector):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())
    with pytest.raises(ZeroDivisionError), de.Monitor.open(tmp_path / "state.json", detector) as monitor:
        monitor.observe(["a"], ["dog"], [3.0])
        raise ZeroDivisionError
    assert de.Monitor.load(tmp_path / "state.json", detector).images == 1


def test_damaged_states_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    detector = make_detector(rng.normal(size=50))
    monitor = de.Monitor(detector).observe(ids_of(40), labels_of(40), rng.normal(-1, 1, 40))
    path = tmp_path / "state.json"
    monitor.save(path)
    assert de.Monitor.load(path, detector).status == monitor.status
    saved = json.loads(path.read_text())
    other = [sealed({**saved, "format": "deltaenergy monitor 2"}), sealed({**saved, "detector": "0" * 16})]
    for damaged in [*({**saved, name: "?"} for name in saved), *other, [], {}]:
        path.write_text(json.dumps(damaged))
        with pytest.raises(ArtifactError):
            de.Monitor.load(path, detector)


def test_one_run_at_a_time(tmp_path: Path) -> None:
    detector = make_detector(np.arange(50.0))
    code = (
        "import sys\nfrom pathlib import Path\nfrom deltaenergy.files import lock_folder\n"
        "with lock_folder(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        with pytest.raises(InputError, match="Another run"), de.Monitor.open(tmp_path / "state.json", detector):
            pass
        other.communicate(b"")


def test_names_that_no_text_can_hold(tmp_path: Path) -> None:
    detector = make_detector(np.arange(50.0))
    monitor = de.Monitor(detector).observe(["a\0b", "\ud800", "x" * 5000], labels_of(3), [-9.0, -9.0, -9.0])
    monitor.save(tmp_path / "state.json")
    names = [seen.id for seen in de.Monitor.load(tmp_path / "state.json", detector).history.flagged]
    assert names == ["a\ufffdb", "?", "x" * 1000]


def test_words() -> None:
    monitor = de.Monitor(make_detector(np.arange(100.0)))
    assert str(monitor.status) == "No image has been seen yet."
    monitor.observe(["a"], ["dog"], [50.0])
    assert str(monitor.status) == (
        "No change found: 0 of 1 image (0%) rejected; calibration allows up to 6.5%. "
        "The probability of a false alarm, over all time, is at most 5%."
    )
    assert repr(monitor) == "<Monitor: images 1; flagged 0; changed no>"
