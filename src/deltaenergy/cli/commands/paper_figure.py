"""`deltaenergy explain --paper-figure`: the paper's Figure 1, measured on known and on unknown images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deltaenergy.cli.shell import common
from deltaenergy.cli.shell.common import err, out
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    from deltaenergy.classifiers.base import Classifier


def write_paper_figure(
    known: str | None,
    unknown: str | None,
    out_file: Path | None,
    detector: str | None,
    classes: str | None,
    model: str,
    template: list[str] | None,
    method: str,
    place: common.Place,
    batch_size: int,
) -> None:
    """Check the words of the command line, measure, write page and JSON, and print which claims hold."""
    from deltaenergy.source import load_images
    from deltaenergy.theory.figure1_page import check_outputs, run_paper_figure
    from deltaenergy.theory.figure1_statistics import claims

    for option, given in (("--known", known), ("--unknown", unknown), ("--out", out_file)):
        if given is None:
            raise InputError(
                f"--paper-figure needs --known DIR, --unknown DIR and --out FILE.html; {option} is missing."
            )
    assert known is not None and unknown is not None and out_file is not None
    check_outputs(out_file)
    # Resolved before the model is loaded, so that a mistyped path is reported at once.
    sets = load_images(known), load_images(unknown)
    classifier = _classifier(detector, classes, model, template, place)
    with common.progress_bar("Masking images") as progress:
        found = run_paper_figure(
            classifier, *sets, out_file, method=method, batch_size=batch_size, progress=progress, command=common.typed()
        )
    for claim in claims(found):
        out.print(f"{'holds' if claim.holds else 'does not hold'}: {claim.claim}. {claim.found}", markup=False)
    err.print(f"Page written to {out_file}, its figures to {out_file.with_suffix('.json')}.", markup=False)
    common.finish(found.unreadable)


def _classifier(
    detector: str | None, classes: str | None, model: str, template: list[str] | None, place: common.Place
) -> Classifier:
    if detector is None:
        return common.zero_shot(model, place, classes, template)
    return common.load_detector(detector, place).classifier
