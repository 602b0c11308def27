"""Both ways to pytorch-ood, against a stand-in with its interfaces: the package needs torchvision, which is not here.

Everything runs in processes of its own, so that neither the stand-in nor the score that it brings is seen by others.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import fresh

ROOT = Path(__file__).resolve().parents[2]


def check_script(script: str, *paths: Path) -> str:
    done = fresh.run_code(script, path=paths)
    assert done.returncode == 0, done.stderr
    return done.stdout


STUB = ROOT / "tests" / "pytorch_ood_stub"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The metadata of the plugin as an installation leaves it."""
    metadata = tmp_path / "deltaenergy_pytorch_ood-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: deltaenergy-pytorch-ood\nVersion: 0.1.0\n")
    text = (ROOT / "examples" / "pytorch-ood" / "pyproject.toml").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith("pytorch-ood = "))
    (metadata / "entry_points.txt").write_text("[deltaenergy.scores]\n" + line.replace('"', "") + "\n")
    return tmp_path


def test_our_scores_on_logits() -> None:
    """Against the float64 formula of mcm and against the functions of this package, with the sign turned."""
    check_script(
        """
import numpy as np, torch, deltaenergy as de
from pytorch_ood.api import LogitsDetector, ModelNotSetException, RequiresFittingException
from deltaenergy.bridges.pytorch_ood import ScoreOnLogits
rng = np.random.default_rng(0)
weight = torch.tensor(rng.normal(size=(5, 8)), dtype=torch.float32)
model = lambda x: 30 * x @ weight.T
x = torch.tensor(rng.normal(size=(40, 8)), dtype=torch.float32)
detector = ScoreOnLogits(model, "mcm", logit_scale=100)
assert isinstance(detector, LogitsDetector) and not detector.requires_fit
similarities = model(x).double().numpy() / 100
shares = np.exp(similarities) / np.exp(similarities).sum(axis=1, keepdims=True)
assert np.allclose(detector(x).numpy(), -shares.max(axis=1), atol=1e-6)
found = ScoreOnLogits(None, "delta-energy").predict_logits(model(x)).numpy()
assert np.allclose(found, -de.scores.delta_energy(similarities), atol=1e-4)
fitted = ScoreOnLogits(model, "multi-delta-energy")
assert fitted.requires_fit
labels = torch.arange(40) % 4 - 1
for wrong, detector in [(RequiresFittingException, fitted), (ModelNotSetException, ScoreOnLogits(None))]:
    try:
        detector(x)
    except wrong:
        continue
    raise AssertionError(wrong)
fitted.fit([(x[:20], labels[:20]), (x[20:], labels[20:])])
alone = ScoreOnLogits(None, "multi-delta-energy").fit_logits(model(x[labels >= 0]), torch.zeros(30))
assert torch.allclose(fitted(x), alone.predict_logits(model(x))), "images with a negative label are not learned from"
try:
    ScoreOnLogits(model, "knn")
except de.errors.InputError as error:
    assert "features" in str(error)
else:
    raise AssertionError
""",
        STUB,
    )


def test_our_scores_on_features() -> None:
    """knn against distances in float64; unknown images get the larger number."""
    check_script(
        """
import numpy as np, torch, deltaenergy as de
from pytorch_ood.api import FeaturesDetector, RequiresFittingException
from deltaenergy.bridges.pytorch_ood import ScoreOnFeatures
rng = np.random.default_rng(0)
known = rng.normal((5, 0, 0, 0), 0.5, (60, 4)); strange = rng.normal((0, 0, 5, 0), 0.5, (20, 4))
z, new = torch.tensor(known).float(), torch.tensor(strange).float()
detector = ScoreOnFeatures(lambda x: 2 * x, "knn")
assert isinstance(detector, FeaturesDetector) and detector.requires_fit
try:
    detector(new)
except RequiresFittingException:
    pass
else:
    raise AssertionError
detector.fit([(z, torch.zeros(60)), (new, -torch.ones(20))])
unit = lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True)
expected = np.linalg.norm(unit(strange)[:, None] - unit(known)[None], axis=2).min(axis=1)
assert np.allclose(detector(new).numpy(), expected, atol=1e-5)
assert detector(new).min() > detector(z).max()
vectors = torch.eye(4)[:3]
on_similarities = ScoreOnFeatures(None, "max-logit", class_vectors=vectors).predict_features(z)
assert np.allclose(-on_similarities.numpy(), de.scores.max_logit(unit(known)[:, :3]), atol=1e-5)
""",
        STUB,
    )


@pytest.mark.parametrize("name", ["KNN", "Mahalanobis", "RMD", "ViM", "GEN", "KLMatching"])
def test_its_detectors_as_our_score(installed: Path, tmp_path: Path, name: str) -> None:
    """The score is its outlier score with the sign turned, before and after the detector is saved."""
    check_script(
        f"""
import numpy as np, torch, deltaenergy as de
from pytorch_ood import detector as package
from deltaenergy.scoring import deal_folds
rng = np.random.default_rng(0)
unit = lambda rows: (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
vectors = unit(rng.normal(size=(3, 8)))
known = unit(vectors[np.arange(120) % 2] + 0.2 * rng.normal(size=(120, 8)))
new = unit(rng.normal(size=(30, 8)))
classifier = de.PrecomputedClassifier(vectors, ["a", "b", "c"])
detector = de.Detector(classifier, "pytorch-ood(detector={name})").calibrate(known, 0.9, None)
found = np.array([verdict.score for verdict in detector.predict(new)])
folds, each = deal_folds([None] * 120), []
for k in range(5):  # a score that learns is the mean over the folds
    seen = known[folds != k]
    similarities = torch.tensor(seen @ vectors.T)
    labels = similarities.argmax(dim=1).unique(return_inverse=True)[1]
    kind = package.{name}
    made = kind(None, 4, 100 * torch.tensor(vectors), torch.zeros(3)) if "{name}" == "ViM" else kind(None)
    if "{name}" in ("GEN", "KLMatching"):
        if "{name}" == "KLMatching":
            made.fit_logits(100 * similarities, similarities.argmax(dim=1))
        each.append(-made.predict_logits(100 * torch.tensor(new @ vectors.T)).numpy())
    else:
        each.append(-made.fit_features(torch.tensor(seen), labels).predict_features(torch.tensor(new)).numpy())
expected = np.mean(each, axis=0)
assert np.allclose(found, expected, rtol=1e-3, atol=1e-4), (found[:3], expected[:3])
assert len(set(found.round(6))) > 2
detector.save({str(tmp_path / "detector")!r})
again = de.Detector.load({str(tmp_path / "detector")!r}, model=classifier.model)
assert np.allclose([verdict.score for verdict in again.predict(new)], found, rtol=1e-5)
""",
        STUB,
        installed,
    )


def test_the_score_is_known_to_the_registry_and_passes_the_checks(installed: Path) -> None:
    out = check_script(
        "import deltaenergy as de\nfrom deltaenergy.testing import check_score\n"
        "assert 'pytorch-ood' in de.list_scores()\ncheck_score('pytorch-ood'); print('fine')",
        STUB,
        installed,
    )
    assert out.strip() == "fine"


def test_without_the_package_it_says_what_to_install(installed: Path) -> None:
    check_script(
        """
import deltaenergy as de
score = de.make_score("pytorch-ood")
assert "pip install" in score.missing
try:
    import deltaenergy.bridges.pytorch_ood.detectors
except ImportError as error:
    assert "pytorch-ood>=0.4" in str(error)
else:
    raise AssertionError
""",
        installed,
    )
