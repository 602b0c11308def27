"""All checks and Figure 1 on one detector, with sentences on what held and what did not."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deltaenergy.classifiers.base import Classifier, Inputs, Outputs
from deltaenergy.classifiers.ebm import Ebm
from deltaenergy.classifiers.prompt import PromptClassifier
from deltaenergy.core.classes import class_indices
from deltaenergy.core.progress import stage
from deltaenergy.data.items import ImageItem, Unreadable
from deltaenergy.detector.detector import Detector
from deltaenergy.detector.opening import By, DetectorSource
from deltaenergy.errors import InputError
from deltaenergy.explanation.methods import check_method
from deltaenergy.models.on import On
from deltaenergy.scoring import score_images
from deltaenergy.source import Source, as_source, has_pixels, labelled_images, load_images
from deltaenergy.theory.bound import BoundCheck, check_bound
from deltaenergy.theory.figure1 import Figure1, claims, figure1, figure_record
from deltaenergy.theory.hessian import GeneralisationGap, HessianCheck, check_hessians, generalisation_gaps
from deltaenergy.theory.separation import (
    FalsePositives,
    ManyClasses,
    PairCheck,
    check_pairs,
    false_positive_rates,
    gradient_identities,
    many_classes_at,
)

# Hessian-vector products use this many images, which limits their memory.
HESSIAN_IMAGES = 512
# Identities that hold in exact arithmetic must hold to this in float64.
EXACT = 1e-9


@dataclass(frozen=True)
class TheoryReport:
    """What was found.

    `hessian` and `hessian_without` are None without a context to differentiate, `figure` without unknown images and for
    feature stores.
    """

    method: str
    images: int
    tau: float
    p: float
    epsilon: float | None
    bound: BoundCheck
    pairs: PairCheck
    with_open_set: bool
    identities: tuple[float, float]
    below_ln2: float
    hessian: HessianCheck | None
    hessian_without: HessianCheck | None
    method_without: str | None
    false_positives: list[FalsePositives] = field(default_factory=list)
    many_classes: list[ManyClasses] = field(default_factory=list)
    gaps: list[GeneralisationGap] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    figure: Figure1 | None = None

    def sentences(self) -> list[tuple[str, str]]:
        """(theorem, finding) pairs, for terminal and page."""
        findings = {
            "Theorem 1": self._theorem_1(),
            "Theorem 1, many classes": self._many_classes(),
            "Theorem 2": self._theorem_2(),
            "Theorem 3": self._theorem_3(),
            "Theorem 4": self._theorem_4(),
            "Proposition": [one.sentence() for one in self.gaps]
            or ["Not checked: it needs a learned context, and known images of several domains."],
        }
        return [(name, finding) for name, found in findings.items() for finding in found]

    def figure_sentences(self) -> list[tuple[str, str]]:
        """(verdict, claim and finding) pairs of Figure 1, for the terminal."""
        if self.figure is None:
            return [("Figure 1", "Not checked: it needs unknown images, and images rather than feature stores.")]
        return [
            (f"Figure 1 {'holds' if one.holds else 'does not hold'}", f"{one.claim}. {one.found}")
            for one in claims(self.figure)
        ]

    def report_page(self, folder: Path, title: str | None, command: str | None) -> str:
        from deltaenergy.theory.page import theory_page

        return theory_page(self, command or "")

    def to_dict(self) -> dict[str, Any]:
        """The numbers as JSON values."""
        bound = self.bound
        return {
            "method": self.method,
            "images": self.images,
            "tau": self.tau,
            "p": self.p,
            "epsilon": self.epsilon,
            "theorem_1": {
                **asdict(self.pairs),
                "with_open_set": self.with_open_set,
                "gradient_identities": list(self.identities),
            },
            "many_classes": [asdict(one) for one in self.many_classes],
            "theorem_2": {
                "share_with_s1_at_most_tau_ln2": self.below_ln2,
                "false_positives": [asdict(one) for one in self.false_positives],
            },
            "theorem_3": {
                "holds": float(bound.holds.mean()),
                "condition": float(bound.stated.mean()),
                "condition_met": int(bound.stated.sum()),
                "holds_under_condition": _share(bound.holds[bound.stated]),
                "counterexamples": bound.counterexamples,
                "absolute_condition": float(bound.absolute.mean()),
                "holds_under_absolute_condition": _share(bound.holds[bound.absolute]),
                "needed_condition": float(bound.needed.mean()),
                "holds_under_needed_condition": _share(bound.holds[bound.needed]),
                "mean_delta_energy": float(bound.delta_energy.mean()),
                "mean_loss": float(bound.loss.mean()),
                "mean_mask_distance": float(bound.mask_distance.mean()),
            },
            "theorem_4": {
                "with": None if self.hessian is None else asdict(self.hessian),
                "without": None if self.hessian_without is None else asdict(self.hessian_without),
                "method_without": self.method_without,
            },
            "proposition": [{**asdict(one), "right": one.right} for one in self.gaps],
            "figure_1": None if self.figure is None else figure_record(self.figure),
        }

    def _theorem_1(self) -> list[str]:
        pairs = self.pairs
        if not pairs.pairs:
            return ["No pair has the first image's largest similarity above the second's."]
        whom = "known with unknown images" if self.with_open_set else "known images with each other (no unknown images)"
        found = [
            f"Over {pairs.pairs:,} pairs of {whom}: property 1 (order) holds for {pairs.order:.1%}, property 2 "
            f"(wider gap than MCM) for {pairs.spread:.1%}."
        ]
        if pairs.order_if is None or pairs.spread_if is None:
            found.append("Its assumption of equal b = Σ_{k≠1} e^{s_k/τ} is met by no pair (within 10%).")
        else:
            found.append(
                f"Its assumption of equal b = Σ_{{k≠1}} e^{{s_k/τ}} is met (within 10%) by {pairs.assumption:.1%} "
                f"of the pairs (median factor {math.exp(min(pairs.log_gap, 50)):.3g}); among them property 1 holds "
                f"for {pairs.order_if:.1%}, property 2 for {pairs.spread_if:.1%}."
            )
        exact = max(self.identities) < EXACT
        found.append(
            f"The gradient identities {'hold' if exact else 'do NOT hold'}: largest deviations "
            f"{self.identities[0]:.1e} and {self.identities[1]:.1e}, relative to 1/τ."
        )
        return found

    def _many_classes(self) -> list[str]:
        """The appendix's argument for many classes, with all classes that there are."""
        return [
            f"At τ = {one.tau:.3g} with all {one.classes} classes b ≥ 10 e^{{s_1/τ}} for {one.assumption:.1%} of "
            f"the images (median ratio {one.ratio:.3g}); the expansions of ΔEnergy and MCM are off by "
            f"{one.error:.1%} and {one.error_mcm:.1%} in the median, and the gap is wider than MCM's for "
            f"{one.wider:.1%} of {one.pairs:,} pairs."
            for one in self.many_classes
            if one.classes == max(other.classes for other in self.many_classes)
        ]

    def _theorem_2(self) -> list[str]:
        limit = self.tau * math.log(2)
        said = "so it says nothing here" if self.below_ln2 == 0 else "and it covers only these"
        return [
            f"Its condition s_1 ≤ τ ln 2 = {limit:.4g} is met by {self.below_ln2:.1%} of the images, {said}.",
            *(
                [one.sentence() for one in self.false_positives]
                or ["False positive rates are not checked: no unknown images were given."]
            ),
        ]

    def _theorem_3(self) -> list[str]:
        bound = self.bound
        level = "with each image's smallest ε_E = L_ΔE" if self.epsilon is None else f"with ε_E = {self.epsilon:g}"
        found = [
            f"ΔEnergy ≥ −L_ΔE holds for {bound.holds.mean():.1%} of {self.images} images (mean ΔEnergy "
            f"{bound.delta_energy.mean():.3g}, mean −L_ΔE {-bound.loss.mean():.3g}, τ = {self.tau:g}, "
            f"p = {self.p:g}).",
            f"The paper's condition {level} is met by {int(bound.stated.sum())} images; among these the "
            f"bound holds for {_percent(bound.holds[bound.stated])}.",
        ]
        if bound.counterexamples:
            found.append(
                f"So the theorem is false as stated: {bound.counterexamples} images meet its condition and "
                "violate its conclusion. Its proof needs the sign reversed (a ≥ Z' − Z)."
                + (" An epsilon above 0 tests the condition where it is not empty." if self._empty() else "")
            )
        found.append(
            f"Sufficient conditions: a ≥ Z' − Z holds for {bound.needed.mean():.1%} (bound then holds for "
            f"{_percent(bound.holds[bound.needed])}); the paper's with ε_E = |L_ΔE| for "
            f"{bound.absolute.mean():.1%} ({_percent(bound.holds[bound.absolute])})."
        )
        return found

    def _empty(self) -> bool:
        """Whether the stated condition is empty for some counterexample: its right-hand side is not positive."""
        violated = self.bound.stated & ~self.bound.holds
        return self.epsilon <= 0 if self.epsilon is not None else bool((self.bound.loss[violated] <= 0).any())

    def _theorem_4(self) -> list[str]:
        h, without = self.hessian, self.hessian_without
        if h is None:
            return ["Not checked: this classifier has no learned context to differentiate by."]
        found = [f"{self.method}: {h.sentence()}"]
        if without is not None:
            ratio = h.distance / max(without.distance, 1e-30)
            closer = "closer together" if ratio < 1 else "NOT closer together"
            found += [
                f"{self.method_without}: {without.sentence()}",
                f"The Hessians of {self.method} are {closer}: {ratio:.3g} times the distance of the other.",
            ]
        else:
            found.append("To compare, pass a detector that was tuned without EBM.")
        found.append(
            f"Its assumptions: ε = ‖z − z⊙m‖ is {h.epsilon:.3g} of a unit feature, which is "
            f"{'small' if h.epsilon < 0.1 else 'NOT small'}; ‖∇²L_ΔE‖ = {h.curvature:.3g}, "
            f"{'within' if h.curvature <= h.epsilon else 'NOT within'} ε; the gradient at the trained context is "
            f"{h.gradient:.3g} ({h.gradient_start:.3g} at a random one), "
            f"{'nearly' if h.gradient < 0.05 * h.gradient_start else 'NOT'} stationary."
        )
        return found


def check_paper(
    by: By,
    known: Any,
    unknown: Any = None,
    *,
    against: str | Path | None = None,
    domains: bool = False,
    method: str = "auto",
    on: str | On = "auto",
) -> TheoryReport:
    """Check the paper's theorems on a detector and images, and its Figure 1 if there are unknown images.

    Args:
        by: a detector or its folder.
        known: images of its classes, in one folder per class.
        unknown: images of none of its classes.
        against: folder of a detector that was tuned without EBM, for Theorem 4.
        domains: whether `known` has folders DOMAIN/CLASS/ rather than CLASS/.
        method: heatmap of Figure 1.
        on: where to run the model, and images per batch.
    """
    source = DetectorSource.of(by, on, "theory")
    check_method(method)
    items, others = labelled_images(known, domains), None if unknown is None else load_images(unknown)
    classifier = source.classifier()
    other = None if against is None else Detector.load(against, model=classifier.model).classifier
    batch_size = source.on.batch_size
    report = check_theory(classifier, items, open_images=others, against=other, batch_size=batch_size)
    if others is None or not all(has_pixels(as_source(one)) for one in (items, others)):
        return report
    return replace(report, figure=figure1(classifier, items, others, method=method, batch_size=batch_size))


def check_theory(
    classifier: Classifier,
    images: list[ImageItem],
    *,
    open_images: Any = None,
    against: Classifier | None = None,
    tau: float = 0.01,
    epsilon: float | None = None,
    batch_size: int = 32,
) -> TheoryReport:
    """Check the theorems on labelled known images.

    Args:
        classifier: zero-shot, or tuned with shared texts; Hessians need a learned context.
        images: labelled images of its classes.
        open_images: images of other classes, for Theorem 1's pairs.
        against: a classifier tuned without EBM, for Theorem 4's comparison.
        tau: the temperature of the energies.
        epsilon: ε_E of Theorem 3's condition; by default each image's smallest, L_ΔE.
        batch_size: images per step of the image tower.

    Unreadable images are skipped and listed in the report's `unreadable`.
    """
    if not 0 < tau < math.inf:
        raise InputError(f"tau must be a positive number, got {tau}.")
    if epsilon is not None and not math.isfinite(epsilon):
        raise InputError(f"epsilon must be a finite number, got {epsilon}.")
    # The EBM term that it was tuned with, or the default one.
    term = next((term for term in classifier.method.terms if isinstance(term, Ebm)), Ebm())
    unreadable: list[Unreadable] = []
    # Every label is checked before the long work of encoding.
    truth = dict(zip((item.id for item in images), class_indices(images, classifier.classes, "In-distribution images")))
    read, features = _features(classifier, as_source(images), "in-distribution", unreadable, batch_size)
    labels = torch.tensor([truth[item.id] for item in read], device=classifier.model.device)
    found = _cosines(classifier, features)
    similarities = found.similarities
    others = None
    if open_images is not None:
        _, opened = _features(classifier, as_source(open_images), "open", unreadable, batch_size)
        others = _cosines(classifier, opened).similarities
    rng = np.random.default_rng(0)
    some = torch.from_numpy(rng.permutation(len(features))[:HESSIAN_IMAGES]).to(features.device)
    hessian, without = (
        check_hessians(one, features[some], labels[some], term.p, term.loss_tau)
        if isinstance(one, PromptClassifier)
        else None
        for one in (classifier, against)
    )
    chosen = [read[i].domain or "" for i in some.tolist()]
    return TheoryReport(
        method=classifier.method.spec,
        images=len(features),
        tau=tau,
        p=term.p,
        epsilon=epsilon,
        bound=check_bound(found.features, classifier.text_features, term.p, tau, epsilon=epsilon),
        pairs=check_pairs(similarities, others, tau, rng),
        with_open_set=others is not None,
        identities=gradient_identities(similarities, tau),
        below_ln2=float((similarities.amax(dim=1) <= tau * math.log(2)).float().mean()),
        hessian=hessian,
        hessian_without=without,
        method_without=None if against is None else against.method.spec,
        false_positives=[] if others is None else false_positive_rates(similarities, others, tau),
        many_classes=[
            one
            for temperature in dict.fromkeys((tau, 1.0))
            for one in many_classes_at(similarities, others, temperature, rng)
        ],
        gaps=(
            generalisation_gaps(classifier, features[some], labels[some], chosen)
            if isinstance(classifier, PromptClassifier)
            else []
        ),
        unreadable=unreadable,
    )


def _cosines(classifier: Classifier, features: torch.Tensor) -> Outputs:
    """The classifier's outputs, if they are cosines with texts shared by all, as the theorems need."""
    with torch.no_grad():
        found = classifier(Inputs(features))
        plain = found.features @ classifier.text_features.T.to(features)
    if (found.similarities - plain).abs().max() > 1e-4:
        raise InputError(
            "The theorems need cosines with class texts that all images share, unlike a classifier tuned by "
            f"{classifier.method.name}. Tune with coop, ebm, locoop or clip-adapter, or use a zero-shot classifier."
        )
    return found


def _features(
    classifier: Classifier,
    source: Source,
    what: str,
    unreadable: list[Unreadable],
    batch_size: int,
) -> tuple[list[ImageItem], torch.Tensor]:
    """The images that can be read with their unit features on the model's device; the others join `unreadable`."""
    with stage("Encoding images") as progress:
        found = score_images(classifier, [], source, keep_features=True, batch_size=batch_size, progress=progress)
    unreadable += found.unreadable
    if not found.items or found.features is None:
        first = found.unreadable[0]
        raise InputError(f"None of the {what} images can be read; the first is {first.id}: {first.reason}")
    return list(found.items), torch.from_numpy(found.features).to(classifier.model.device)


def _share(values: Any) -> float | None:
    return float(values.mean()) if len(values) else None


def _percent(values: Any) -> str:
    return f"{values.mean():.1%}" if len(values) else "no image: there are none"
