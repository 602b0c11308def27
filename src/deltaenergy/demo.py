"""The main job on sample photos: six of the classes, ten of other things, and a report.

The photos come with scikit-image and scikit-learn (extra `demo`), so nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from deltaenergy.data.items import ImageItem, load_rgb
from deltaenergy.errors import InputError
from deltaenergy.files import check_writable

if TYPE_CHECKING:
    from deltaenergy.detector.detector import Detector
    from deltaenergy.detector.verdicts import Verdicts
    from deltaenergy.evaluation import Evaluation

CLASSES = ("cat", "cup of coffee", "motorcycle", "rocket", "flower", "temple")
# (package, file inside it, class or None): None for images of none of the classes.
PHOTOGRAPHS: tuple[tuple[str, str, str | None], ...] = (
    ("skimage", "data/chelsea.png", "cat"),
    ("skimage", "data/coffee.png", "cup of coffee"),
    ("skimage", "data/motorcycle_left.png", "motorcycle"),
    ("skimage", "data/rocket.jpg", "rocket"),
    ("sklearn", "datasets/images/flower.jpg", "flower"),
    ("sklearn", "datasets/images/china.jpg", "temple"),
    ("skimage", "data/brick.png", None),
    ("skimage", "data/camera.png", None),
    ("skimage", "data/coins.png", None),
    ("skimage", "data/grass.png", None),
    ("skimage", "data/gravel.png", None),
    ("skimage", "data/hubble_deep_field.jpg", None),
    ("skimage", "data/ihc.png", None),
    ("skimage", "data/moon.png", None),
    ("skimage", "data/page.png", None),
    ("skimage", "data/retina.jpg", None),
)
# Views per known photo that can set a threshold, and their random seed.
VIEWS, SEED = 20, 0


@dataclass(frozen=True)
class Demo:
    """The results of the demo."""

    detector: Detector
    known: Verdicts
    unknown: Verdicts
    evaluation: Evaluation


def sample_photographs() -> list[ImageItem]:
    """The sample photos, by reference. Raises `InputError` if their packages are missing."""
    folders = {package: _package_folder(package) for package in ("skimage", "sklearn")}
    return [ImageItem(Path(file).name, folders[package] / file, label) for package, file, label in PHOTOGRAPHS]


def run_demo(model: str = "lite", out: str | Path | None = None) -> Demo:
    """Classify the sample photos from class names, reject those of other things, and measure both.

    Args:
        model: its name or folder.
        out: folder for `report.html` and `detector/`; nothing is written without it.
    """
    from deltaenergy.detector.opening import ClassNames, DetectorSource
    from deltaenergy.evaluation import evaluate
    from deltaenergy.report import write_report

    if out is not None:
        check_writable(out, folder=True, argument="out")
    photographs = sample_photographs()
    known = [item for item in photographs if item.label is not None]
    others = [item for item in photographs if item.label is None]
    detector = DetectorSource.of(ClassNames(CLASSES, model), "auto", "demo").named_detector(None)
    evaluation = evaluate(detector, id_sets=[("listed classes", known)], open_sets=[("other things", others)])
    if out is not None:
        detector.save(Path(out) / "detector")
        write_report(evaluation, Path(out) / "report.html", title="deltaenergy demo", command="deltaenergy demo")
    return Demo(detector, detector.predict(known), detector.predict(others), evaluation)


def calibration_views(known: list[ImageItem]) -> list[ImageItem]:
    """Random crops of the known photos, mirrored and re-lit, as known images."""
    rng = np.random.default_rng(SEED)
    views = []
    for item in known:
        image = load_rgb(item)
        views += [ImageItem(f"{item.id} (view {i})", _view(image, rng), item.label) for i in range(VIEWS)]
    return views


def _view(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    side = rng.uniform(0.7, 1.0)
    width, height = round(image.width * side), round(image.height * side)
    left, top = rng.integers(0, image.width - width + 1), rng.integers(0, image.height - height + 1)
    view = image.crop((int(left), int(top), int(left) + width, int(top) + height))
    if rng.random() < 0.5:
        view = ImageOps.mirror(view)
    return ImageEnhance.Brightness(view).enhance(rng.uniform(0.7, 1.3))


def _package_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise InputError(
            "The demo's sample photos come with scikit-image and scikit-learn, which are not installed. Install them "
            "with `pip install 'deltaenergy[demo]'`, or use your own images."
        )
    return Path(spec.origin).parent
