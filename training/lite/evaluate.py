"""Print what the model card reports: `python -m training.lite.evaluate PICTURES`.

PICTURES holds folders of pictures, one per class: imagenet_one_per_class, oxford_pets, caltech101, pacs/<domain>,
intel_scenes, shape16/<kind>, food3. Sets that are absent are left out. Zero-shot with the template `a photo of a {}.`
and folder names as class names (underscores are spaces; ImageNet's folders are wnid_name and get the canonical
names). Nothing is chosen here: run it once.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

import deltaenergy as de
from training.lite.joint import class_list

SCORES = ("msp", "mcm", "max-logit", "energy", "entropy", "delta-energy", "delta-energy(tau=0.1,c=1)")


class Evaluation:
    """The model on the folders of pictures below `root`."""

    def __init__(self, model: "de.Model", root: Path) -> None:
        self.model, self.root = model, root
        self.known: dict[str, tuple[np.ndarray, np.ndarray, list[str]]] = {}

    def pictures(self, folder: str, skip: tuple[str, ...] = ()) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Features, labels and class names of a folder of folders."""
        if folder not in self.known:
            classes = [c for c in sorted((self.root / folder).iterdir()) if c.is_dir()]
            files = [(label, file) for label, c in enumerate(classes) for file in sorted(c.iterdir())]
            features = self.model.encode_images([str(file) for _, file in files])
            self.known[folder] = features, np.array([label for label, _ in files]), [c.name for c in classes]
        features, labels, names = self.known[folder]
        kept = [i for i, name in enumerate(names) if name not in skip]
        rows = np.isin(labels, kept)
        return features[rows], np.searchsorted(kept, labels[rows]), [names[i].replace("_", " ") for i in kept]

    def similarities(self, features: np.ndarray, names: list[str]) -> np.ndarray:
        """Cosines of features and names in the template."""
        texts = self.model.encode_texts([f"a photo of a {name}." for name in names])
        return features @ texts.T

    def accuracy(self, folder: str, skip: tuple[str, ...] = ()) -> tuple[float, dict[str, float], np.ndarray]:
        """Accuracy, accuracy by class, cosines."""
        features, labels, names = self.pictures(folder, skip)
        similarity = self.similarities(features, names)
        right = similarity.argmax(1) == labels
        return float(right.mean()), {n: float(right[labels == i].mean()) for i, n in enumerate(names)}, similarity


def auroc(inside: np.ndarray, outside: np.ndarray) -> float:
    """Share of (inside, outside) pairs in the right order, ties counting half."""
    both = np.concatenate([inside, outside])
    order = np.argsort(both, kind="stable")
    ranks = np.empty(len(both))
    ranks[order] = np.arange(1, len(both) + 1)
    for value in np.unique(both):
        same = both == value
        if same.sum() > 1:
            ranks[same] = ranks[same].mean()
    n, m = len(inside), len(outside)
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * m))


def calibration_error(similarity: np.ndarray, labels: np.ndarray, bins: int = 15) -> float:
    """Expected calibration error of softmax(100 s) over equal-width bins of confidence."""
    probabilities = torch.softmax(100 * torch.from_numpy(similarity).double(), 1).numpy()
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    bin_of = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [abs(right[bin_of == b].mean() - confidence[bin_of == b].mean()) * (bin_of == b).mean() for b in set(bin_of)]
    return float(sum(gaps))


def open_set(inside: np.ndarray, outside: np.ndarray) -> str:
    """AUROC of every score, from the cosines of pictures in and outside the classes."""
    rows = []
    for spec in SCORES:
        score = de.scores.make_score(spec)
        values = [
            score(de.scores.ScoreInputs(similarities=torch.from_numpy(s), features=torch.zeros(len(s), 1))).numpy()
            for s in (inside, outside)
        ]
        rows.append(f"{spec} {auroc(*values):.3f}")
    return ", ".join(rows)


def per_class(values: dict[str, float]) -> str:
    """Accuracies in percent, in a line."""
    return ", ".join(f"{name} {100 * value:.0f}" for name, value in values.items())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--like-pacs", default="", help="comma-separated Caltech101 folders that overlap with PACS")
    options = parser.parse_args()
    run = Evaluation(de.load_model("lite"), options.pictures)

    if (options.pictures / "imagenet_one_per_class").is_dir():
        features, labels, _ = run.pictures("imagenet_one_per_class")
        similarity = run.similarities(features, [name for _, name in class_list()])
        # Two class names stand twice in the list; either class of such a pair is right.
        names = np.array([name for _, name in class_list()])
        right = names[similarity.argmax(1)] == names[labels]
        odd = labels % 2 == 1
        others = similarity[~np.eye(1000, dtype=bool)[labels]]
        half = 100 * right[odd].mean()
        print(f"imagenet_one_per_class: {100 * right.mean():.1f} (odd classes, unseen in training: {half:.1f})")
        print(f"  top cosine {similarity.max(1).mean():.3f}, others {others.mean():.3f} ± {others.std():.3f}")
        error, held = calibration_error(similarity, labels), calibration_error(similarity[odd], labels[odd])
        print(f"  calibration error {error:.3f} (odd classes: {held:.3f})")
    if (options.pictures / "oxford_pets").is_dir():
        value, classes, pets = run.accuracy("oxford_pets")
        print(f"oxford_pets: {100 * value:.1f}\n  {per_class(classes)}")
        if (options.pictures / "food3").is_dir():
            outside = run.similarities(run.pictures("food3")[0], list(classes))
            print(f"  AUROC against food3: {open_set(pets, outside)}")
    if (options.pictures / "caltech101").is_dir():
        value, classes, _ = run.accuracy("caltech101", skip=("BACKGROUND_Google",))
        print(f"caltech101 without BACKGROUND_Google: {100 * value:.1f}\n  {per_class(classes)}")
    for domain in ("photo", "art_painting", "cartoon", "sketch"):
        if (options.pictures / "pacs" / domain).is_dir():
            value, classes, similarity = run.accuracy(f"pacs/{domain}")
            print(f"pacs {domain}: {100 * value:.1f}\n  {per_class(classes)}")
            if domain == "photo" and (options.pictures / "caltech101").is_dir():
                skip = ("BACKGROUND_Google", *options.like_pacs.split(","))
                outside = run.similarities(run.pictures("caltech101", skip)[0], list(classes))
                print(f"  AUROC against caltech101 without overlaps: {open_set(similarity, outside)}")
    for folder in ("intel_scenes", "shape16/edges", "shape16/silhouettes", "shape16/cue_conflict"):
        if (options.pictures / folder).is_dir():
            value, classes, _ = run.accuracy(folder)
            print(f"{folder}: {100 * value:.1f}\n  {per_class(classes)}")


if __name__ == "__main__":
    main()
