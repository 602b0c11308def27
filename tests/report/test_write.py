"""Whole reports: complete in themselves, safe against hostile names, and with what was found."""

from __future__ import annotations

import base64
import io
import re

import pytest
from PIL import Image

from deltaenergy import Detector, ZeroShotClassifier
from deltaenergy.data.items import ImageItem
from deltaenergy.errors import InputError, NotFittedError
from deltaenergy.evaluation import evaluate
from deltaenergy.report import write_report
from deltaenergy.report.images import thumbnail
from tests.colours import ColourModel, paint, paint_sets
from tests.report.checks import check_page

EVIL = "<script>alert('red')</script>"


@pytest.fixture
def sets(tmp_path):
    return paint_sets(tmp_path)


def written(results, tmp_path, **options):
    path = tmp_path / "out" / "report.html"
    write_report(results, path, **options)
    document = path.read_text(encoding="utf-8")
    return check_page(document), document


def run(sets, names=("red", "green", "blue"), scores=("delta-energy", "mcm"), **options):
    classifier = ZeroShotClassifier(ColourModel(), names)
    return evaluate(
        classifier,
        list(scores),
        [("known", sets / "known")],
        [("dark", sets / "dark")],
        [("grey", sets / "grey")],
        resamples=50,
        **options,
    )


def words(page):
    return " ".join(page.text.replace("\u00a0", " ").split())


def test_report_says_what_was_asked_found_and_how_it_was_made(sets, tmp_path):
    found = run(sets)
    page, _ = written(found, tmp_path, command="deltaenergy evaluate --id known")
    text = words(page)
    assert "19 images of these classes (known)" in text
    assert "The class is right for 94.7% of the known images and for 100% of the shifted images" in text
    made = found.provenance
    for expected in (
        made["model"]["fingerprint"],
        made["classes_hash"],
        "a photo of a {}.",
        made["versions"]["torch"],
        "deltaenergy evaluate --id known",
        made["date"],
    ):
        assert expected in text
    for row in found.detection:
        assert f"{100 * row.metrics['auroc'].low:.1f} to {100 * row.metrics['auroc'].high:.1f}" in text or (
            row.metrics["auroc"].low == row.metrics["auroc"].high
        )
    for heading in ("AUROC ↑", "FPR95 ↓", "FPR95 (open) ↓", "AUPR-in ↑", "AUPR-out ↑"):
        assert heading in text


def test_large_report_shows_mistakes_of_each_kind(sets, tmp_path):
    # At this keep rate some known pictures are rejected; the strange ones look known.
    for i in range(3):
        paint(sets / "grey" / f"in truth red {i}.png", (250, i, 0))
    found = run(sets, keep=0.7)
    page, _ = written(found, tmp_path)
    text = words(page)
    assert "Unknown images that were kept (3 images)" in text
    rejected = int(found.is_ood(found.sets[0]).sum())
    assert rejected > 0 and f"Known images that were rejected ({rejected} images)" in text
    assert "Images given a wrong class" in text and "blue after all.png" in text
    assert "Least confident: closest to the threshold" in text
    assert len(page.all("img")) > 20


def test_small_report_shows_every_picture(tmp_path, sets):
    classifier = ZeroShotClassifier(ColourModel(), ["red", "green", "blue"])
    detector = Detector(classifier, "delta-energy").calibrate(sets / "dark")
    found = evaluate(detector, None, [("known", sets / "known")], open_sets=[("unknown", sets / "grey")])
    page, _ = written(found, tmp_path, title="A small one")
    assert len(page.all("img")) == 19 + 8
    text = words(page)
    assert text.startswith("A small one") and "At the detector’s threshold" in text


def test_hostile_names_are_text(tmp_path, sets):
    evil_file = tmp_path / "known" / "red" / "<img src=x onerror=alert(1)>.png"
    paint(evil_file, (200, 0, 0))
    classifier = ZeroShotClassifier(ColourModel(), [EVIL, "green", "blue"], template='"><b>{}')
    found = evaluate(
        classifier,
        ["mcm"],
        [(EVIL, [ImageItem(str(p), p, EVIL) for p in sorted((sets / "known" / "red").iterdir())])],
        open_sets=[('"quoted" & <b>', sets / "grey")],
        resamples=20,
    )
    page, document = written(found, tmp_path, title=EVIL, command="</code><script>")
    assert EVIL in page.text and "<script" not in document and "<b>" not in document
    assert any(image["alt"].startswith("<img src=x onerror=alert(1)>.png") for image in page.all("img"))


def test_names_that_turn_text_round_are_isolated(tmp_path, sets):
    (sets / "known" / "red" / "photo\u202egnp.exe.png").write_bytes(
        (sets / "dark").rglob("*.png").__next__().read_bytes()
    )
    classifier = ZeroShotClassifier(ColourModel(), ["red", "green\u202e", "blue"])
    items = [ImageItem(str(p), p, "red") for p in sorted((sets / "known" / "red").iterdir())]
    found = evaluate(classifier, ["mcm"], [("se\u202et", items)], open_sets=[("grey", sets / "grey")], resamples=20)
    _, document = written(found, tmp_path)
    assert "\u202e" in document
    # Wherever the override stands, an isolate is open around it.
    for text in re.split("<[^>]*>", document) + re.findall('="([^"]*)"', document):
        for place in (i for i, letter in enumerate(text) if letter == "\u202e"):
            assert text[:place].count("\u2068") > text[:place].count("\u2069")


def test_pictures_that_are_gone_or_never_were(tmp_path, sets):
    found = run(sets)
    for path in (sets / "grey").iterdir():
        path.unlink()
    page, _ = written(found, tmp_path)
    assert "no image" in page.text
    features = ZeroShotClassifier(ColourModel(), ["red", "green"]).model.encode_images(sets / "dark")
    classifier = ZeroShotClassifier(ColourModel(), ["red", "green"])
    check_page(written(evaluate(classifier, ["mcm"], [("f", features)], open_sets=[("g", features)]), tmp_path)[1])


def test_report_without_open_sets_and_without_labels(tmp_path, sets):
    classifier = ZeroShotClassifier(ColourModel(), ["red", "green", "blue"])
    page, _ = written(evaluate(classifier, ["mcm"], [("known", sets / "known")]), tmp_path)
    assert "Accuracy" in page.text and "ROC" not in page.text
    written(evaluate(classifier, ["mcm"], [("grey", sets / "grey")]), tmp_path)


def test_many_sets_and_scores_get_an_overview(tmp_path, sets):
    classifier = ZeroShotClassifier(ColourModel(), ["red", "green", "blue"])
    scores = ["mcm", "msp", "energy", "entropy", "max-logit", *(f"delta-energy(tau={t})" for t in (0.1, 0.2, 0.5, 1))]
    found = evaluate(
        classifier,
        scores,
        [("known", sets / "known")],
        [("dark", sets / "dark")],
        [(f"grey{i}", [sets / "grey" / f"{i}.png"]) for i in range(4)],
        resamples=10,
    )
    page, _ = written(found, tmp_path)
    text = words(page)
    assert "known (known, 19) against each open set" in text and "1 more score with no higher AUROC" in text
    assert all(spec in text for spec in found.scores)


def test_predictions_need_their_detector(tmp_path, sets):
    detector = Detector(ZeroShotClassifier(ColourModel(), ["red"]), "delta-energy").calibrate(sets / "dark")
    predictions = detector.predict(sets / "grey")
    with pytest.raises(InputError, match="`detector`"):
        write_report(predictions, tmp_path / "r.html")
    with pytest.raises(NotFittedError, match="calibrate"):
        write_report(predictions, tmp_path / "r.html", detector=Detector(detector.classifier, "delta-energy"))
    assert not (tmp_path / "r.html").exists()


def decoded(uri):
    return Image.open(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/jpeg;base64,"))))


def test_thumbnails_are_small_squares_of_any_picture(tmp_path):
    wide = Image.new("RGB", (900, 300), "blue")
    wide.paste("red", (300, 0, 600, 300))
    small = decoded(thumbnail(ImageItem("wide", wide)))
    assert small.size == (256, 256) and small.getpixel((128, 128))[0] > 200
    assert decoded(thumbnail(ImageItem("tiny", Image.new("RGBA", (5, 9))))).size == (5, 5)
    assert thumbnail(ImageItem("row 1", b"")) is None
    assert thumbnail(ImageItem("gone", tmp_path / "gone.png")) is None


def test_several_scores_are_ranked_and_the_best_is_named(tmp_path, sets):
    found = run(sets, scores=("mcm", "delta-energy", "max-logit"))
    page, _ = written(found, tmp_path)
    text = words(page)
    best = max((row for row in found.detection if row.closed == "known"), key=lambda row: row.metrics["auroc"].value)
    assert f"Best of 3 scores: {best.score}, which ranks a known image above an unknown one in" in text
    table = text[text.index("known (known, 19) against grey (open, 8)") :]
    places = {name: table.index(name) for name in found.scores}
    area = {row.score: row.metrics["auroc"].value for row in found.detection if row.closed == "known"}
    assert [area[name] for name in sorted(places, key=places.__getitem__)] == sorted(area.values(), reverse=True)
    # Answers come before histograms, which are folded.
    assert text.index("Metrics") < text.index("Classes") < text.index("The histograms of 3 scores")


def test_classes_confusion_reliability_and_risk_are_shown(tmp_path, sets):
    page, document = written(run(sets, scores=("mcm",)), tmp_path)
    text = words(page)
    for expected in ("Reliability", "ECE", "Risk and coverage", "AURC", "Confusion matrix", "Accuracy of each class"):
        assert expected in text
    assert 'class="heat-cell h2"' in document, "one of seven red pictures is called blue"


def test_many_classes_are_listed_not_drawn(tmp_path, sets):
    names = ["red", "green", "blue", *(f"class {i}" for i in range(30))]
    items = [ImageItem(f"{i}", path, "red") for i, path in enumerate(sorted((sets / "known").rglob("*.png")))]
    items += [ImageItem(f"n{i}", items[0].source, f"class {i}") for i in range(30)]
    found = evaluate(ZeroShotClassifier(ColourModel(), names), ["mcm"], [("known", items)], resamples=10)
    page, _ = written(found, tmp_path)
    text = words(page)
    assert "The 16 least accurate classes" in text and "Confusion matrix" not in text and "predicted class" in text


def test_every_mistake_is_reachable(tmp_path, sets):
    for i in range(20):
        paint(sets / "grey" / f"in truth red {i}.png", (250, i, 0))
    page, _ = written(run(sets, keep=0.9), tmp_path)
    assert "The other 12" in page.text
    for i in range(20):
        assert f"in truth red {i}.png" in page.text
    assert any(str(link["href"]).startswith("./") for link in page.all("a"))


def test_a_near_perfect_curve_has_its_corner_enlarged(tmp_path, sets):
    _, document = written(run(sets, scores=("mcm",), keep=0.99), tmp_path)
    assert "enlarged" in document


def test_report_shows_where_two_scores_disagree(sets, tmp_path):
    """The pictures come in the order of SciPy's ranks, each with both places."""
    from scipy.stats import rankdata

    found = run(sets, scores=("max-logit", "delta-energy", "entropy"))
    page, _ = written(found, tmp_path)
    text = words(page)
    assert "Where two scores disagree most" in text
    told = found.to_dict()["disagreement"]
    assert told["first"] == "max-logit"
    values = {
        spec: rankdata([value for one in found.sets for value in one.scored.values[spec]]) for spec in found.scores
    }
    gaps = values["max-logit"] - values[told["second"]]
    ids = [item.id for one in found.sets for item in one.scored.items]
    shown = [ids.index(one["image"]) for one in told["images"]]
    assert abs(gaps[shown]) == pytest.approx(sorted(abs(gaps), reverse=True)[: len(shown)])
    first = (values["max-logit"][shown[0]] - 0.5) / len(ids)
    assert told["images"][0]["by_first"] == pytest.approx(first)
    assert f"above {100 * first:.0f}% by max-logit" in text
    assert "rank correlation" in text
    # One score has nothing to disagree with.
    alone, _ = written(run(sets, scores=("mcm",)), tmp_path)
    assert "disagree" not in words(alone) and run(sets, scores=("mcm",)).to_dict()["disagreement"] is None
