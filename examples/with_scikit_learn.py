"""An open-set classifier in a scikit-learn pipeline: classes by a few labelled rows, and *none of these* for the rest.

    python examples/with_scikit_learn.py

It needs no images: two kinds of rows are drawn around their centres, and a third kind that nobody was taught.
"""

from __future__ import annotations

import numpy as np
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from deltaenergy.sklearn import OpenSetClassifier


def main() -> None:
    """Cross-validate on known rows, then meet unknown ones."""
    rng = np.random.default_rng(0)
    centres = {"dog": np.eye(8)[0], "cat": np.eye(8)[1]}
    rows = np.concatenate([centre + 0.1 * rng.normal(size=(200, 8)) for centre in centres.values()])
    labels = np.repeat(list(centres), 200)
    strangers = np.eye(8)[5] + 0.1 * rng.normal(size=(100, 8))
    accuracy = cross_val_score(make_pipeline(StandardScaler(), OpenSetClassifier()), rows, labels).mean()
    print(f"accuracy among the classes: {accuracy:.2f}")
    classifier = OpenSetClassifier(unknown="none of these").fit(rows, labels)
    print(classifier.guarantee_)
    kept = np.mean(classifier.predict(rows) != "none of these")
    rejected = np.mean(classifier.predict(strangers) == "none of these")
    print(f"known rows kept: {kept:.2f}; strangers rejected: {rejected:.2f}")


if __name__ == "__main__":
    main()
