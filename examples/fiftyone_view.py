"""Verdicts for FiftyOne: write what its importer reads, and open it there if it is installed.

python examples/fiftyone_view.py DETECTOR PHOTOS OUT/fiftyone

DETECTOR is a folder that `calibrate` or `tune` wrote.
"""

from __future__ import annotations

import sys

import deltaenergy as de


def main(detector: str, photos: str, out: str) -> None:
    de.Detector.load(detector).predict(photos).to_fiftyone(out)
    print(f"Written to {out}.")
    try:
        import fiftyone
    except ImportError:
        print("FiftyOne is not installed: pip install fiftyone.")
        return
    kind = fiftyone.types.FiftyOneImageClassificationDataset
    dataset = fiftyone.Dataset.from_dir(out, dataset_type=kind)
    fiftyone.launch_app(dataset).wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
