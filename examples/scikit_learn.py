"""A linear probe on image features in a scikit-learn pipeline, that knows what it does not know.

    python examples/scikit_learn.py KNOWN PHOTOS

KNOWN has one subfolder of images per class. Features are those of the bundled model; any others will do. Needs `pip
install 'deltaenergy[sklearn]'`.
"""

from __future__ import annotations

import sys

from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline

import deltaenergy as de
from deltaenergy.bridges.sklearn import OpenSetClassifier


def main(known: str, photos: str) -> None:
    model = de.load_model("lite")
    train, new = de.load_images(known), de.load_images(photos)
    labels = [item.label for item in train]
    pipeline = make_pipeline(PCA(8), OpenSetClassifier(ood_score="knn", unknown="none of these"))
    pipeline.fit(model.encode_images(train), labels)
    for item, label in zip(new, pipeline.predict(model.encode_images(new))):
        print(item.id, label, sep="\t")


if __name__ == "__main__":
    main(*sys.argv[1:])
