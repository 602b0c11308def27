"""Print the table "Under shift" of docs/thresholds.md: what `calibrate --tolerate` keeps and what it costs, on `lite`.

    python docs/tables/tolerate.py IMAGES

IMAGES contains the folders `pacs` (domain/class/file) and `dtd10`. Four classes of PACS are known; every second photo
of them sets the threshold, the others are tested as they are and corrupted. Near unknown images are photos of the other
three classes, far unknown images are textures.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from output import print_table

import deltaenergy as de
from deltaenergy.data.corruptions import CORRUPTIONS, corrupted
from deltaenergy.data.items import ImageItem

KNOWN = ["dog", "guitar", "horse", "house"]
TOLERATED = {"nothing": (), "blur, noise, jpeg": ("blur", "noise", "jpeg"), "blur": ("blur",)}


def files(folder: Path) -> list[ImageItem]:
    return [ImageItem(str(path), path) for path in sorted(folder.rglob("*")) if path.is_file()]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    pacs, textures = (parser.parse_args().images / name for name in ("pacs", "dtd10"))
    photos = {name.name: files(name) for name in sorted((pacs / "photo").iterdir())}
    known = [item for name in KNOWN for item in photos[name]]
    clean = known[1::2]
    groups = {"clean": clean} | {kind: [corrupted(item, kind) for item in clean] for kind in CORRUPTIONS}
    for domain in sorted({path.name for path in pacs.iterdir()} - {"photo"}):
        groups[domain] = [item for name in KNOWN for item in files(pacs / domain / name)]
    groups["near"] = [item for name, items in photos.items() if name not in KNOWN for item in items]
    groups["far"] = files(textures)
    classifier = de.ZeroShotClassifier(de.load_model("lite"), KNOWN)
    features = {name: classifier.model.encode(items).features for name, items in groups.items()}

    def kept(kinds: tuple[str, ...]) -> list[float]:
        detector = de.Detector(classifier).calibrate(known[::2], tolerate=kinds)
        rejected = (detector.predict(rows).counts.to_dict()["none of these"] / len(rows) for rows in features.values())
        return [100 * (1 - share) for share in rejected]

    rows = ([label, *kept(kinds)] for label, kinds in TOLERATED.items())
    print_table("tolerate", ["tolerated", *(f"{name} kept" for name in groups)], rows, None)


if __name__ == "__main__":
    main()
