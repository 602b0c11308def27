"""`deltaenergy methods`, `datasets` and `check-model`: what is available, and whether a model runs as it should."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deltaenergy.cli.shell import options as o
from deltaenergy.cli.shell import results
from deltaenergy.cli.shell.app import command
from deltaenergy.cli.shell.console import out, print_json, print_table
from deltaenergy.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from deltaenergy.data.catalogue.audit import DatasetReport
    from deltaenergy.evaluation.backend_check import BackendAgreement

_KINDS = {
    "score": "Scores (--score)",
    "stream adapter": "Stream adapters (adapt --method)",
    "tuning method": "Tuning methods (tune --method)",
    "tuning term": "Terms that attach to a tuning method",
}
_STYLES = {"complete": "green", "partial": "yellow", "differs": "yellow", "present": "yellow", "absent": "dim"}


@command("Research", "deltaenergy methods", "deltaenergy methods mcm")
def methods(
    name: Annotated[
        str | None, typer.Argument(help="Show only this one.", autocompletion=o.complete_score_or_method)
    ] = None,
    json: o.JsonOption = False,
) -> None:
    """List scores, stream adapters and tuning methods; give a NAME for details."""
    from deltaenergy.scores.listing import describe_methods

    rows = describe_methods()
    if name is not None:
        known = [row["name"] for row in rows]
        if name not in known:
            raise InputError(f"Unknown method {name!r}.{did_you_mean(name, known)}")
        rows = [row for row in rows if row["name"] == name]
    if json:
        print_json(rows)
    elif name is None:
        _print_methods(rows)
    else:
        for row in rows:
            _print_method(row)


def _print_methods(rows: list[dict[str, Any]]) -> None:
    from rich.text import Text

    from deltaenergy.scores.registry import DEFAULT_SCORE
    from deltaenergy.tuning.tune import DEFAULT_METHOD

    for kind, title in _KINDS.items():
        cells = [
            [
                Text(row["name"], "cyan"),
                row["summary"],
                Text(", ".join(n for n in row["needs"] if n not in ("similarities", "labelled images")), "dim"),
            ]
            for row in rows
            if row["kind"] == kind
        ]
        print_table(["name", "what it does", "needs"], cells, title=title)
        out.print()
    out.print(f"Not sure? Scores: start with {DEFAULT_SCORE}, the default; `deltaenergy choose --id DIR` ranks them on")
    out.print(f"your own classes. Tuning: {DEFAULT_METHOD} is the default; docs/tuning.md says when to use which.")
    out.print("`deltaenergy methods NAME` shows formula, settings, presets and paper.")


def _print_method(row: dict[str, Any]) -> None:
    def settings(values: dict[str, Any]) -> str:
        return ", ".join(f"{key}={value}" for key, value in values.items())

    presets = [
        f"{row['name']}:{preset} ({settings(values)})"
        + (f", needs {', '.join(needs)}" if (needs := row.get("preset_needs", {}).get(preset)) else "")
        for preset, values in row["presets"].items()
    ]
    kind = "" if row["kind"] == "score" else f"  [{row['kind']}]"
    _print_entry(
        f"{row['name']}{kind}  {row['summary']}",
        {
            "formula": row["formula"],
            "needs": ", ".join(row["needs"]),
            "defaults": settings(row["defaults"]) or "none",
            "presets": ", ".join(presets),
            "paper": row["paper"],
        },
    )
    out.print()


def _print_entry(head: str, lines: dict[str, str]) -> None:
    out.print(head, style="bold cyan")
    for key, text in lines.items():
        if text:
            out.print(f"  {key:<9}{text}")


@command("Research", "deltaenergy datasets", "deltaenergy datasets DATA", "deltaenergy datasets DATA pacs dtd")
def datasets(
    root: Annotated[
        Path | None, typer.Argument(help="Folder with one folder per dataset; without it, all are listed.")
    ] = None,
    names: Annotated[list[str] | None, typer.Argument(help="Only these datasets.", show_default=False)] = None,
    json: o.JsonOption = False,
) -> None:
    """List the datasets of benchmarks, or show which are in ROOT and complete.

    With ROOT, it says how to get missing datasets. Files are counted, not opened.
    """
    from deltaenergy.core.progress import stage
    from deltaenergy.data.catalogue.audit import check_root, unknown_folders
    from deltaenergy.data.catalogue.dataset import get_dataset, list_datasets

    if root is None:
        every = [get_dataset(name) for name in list_datasets()]
        if json:
            keys = ("name", "title", "folders", "licence", "obtain", "paper", "template", "names_hash")
            print_json([{**{key: getattr(d, key) for key in keys}, "classes": len(d.names)} for d in every])
            return
        for one in every:
            classes = f"{len(one.names)}, names {one.names_hash}" if one.classes else "none, or its folders"
            about = {"classes": classes, "licence": one.licence, "obtain": one.obtain}
            _print_entry(f"{one.name}  {one.title} ({one.paper})", about)
        return
    with stage("Counting images"):
        reports = check_root(root, names)
        others = unknown_folders(root) if not names else []
    if json:
        print_json({"root": str(root), "datasets": [asdict(report) for report in reports], "others": others})
        return
    _print_reports(reports)
    if others:
        out.print(f"\nNot a known dataset, but usable as images: {', '.join(others)}")


def _print_reports(reports: list[DatasetReport]) -> None:
    from rich.text import Text

    width = max(len(report.name) for report in reports)
    for report in sorted(reports, key=lambda report: report.status == "absent"):
        line = Text(f"{report.name:<{width}}  ").append(f"{report.status:<8}", _STYLES[report.status])
        if report.folder is not None:
            line.append(f"  {report.images:>9,} images")
            if report.classes_expected:
                line.append(f", {len(report.per_class)} of {report.classes_expected} classes")
            line.append(f"  {report.folder}", "dim")
        out.print(line, soft_wrap=True)
        if report.advice:
            out.print(f"{'':<{width}}  {report.advice}", style="dim")


@command(
    "Operate",
    "deltaenergy check-model lite --on openvino,int8 --int8-images some/ --id good/",
    "deltaenergy check-model CLIP_FOLDER --on onnx --id good/ --open other/ --json",
)
def check_model(
    model: Annotated[str, typer.Argument(help="lite (bundled, offline), a folder, or a Hugging Face Hub id.")],
    images: Annotated[str, typer.Option("--id", help="Known images in class folders.")],
    on: o.OnOption = "auto",
    int8_images: o.Int8Option = None,
    open_images: Annotated[str | None, o.unset("--open", help="Images of none of the classes.")] = None,
    score: o.ScoreOption = None,
    json: o.JsonOption = False,
) -> None:
    """Compare a backend or precision with torch fp32: labels, verdicts, AUROC, speed.

    Every other image of --id sets a threshold; the rest, and those of --open, get verdicts. The two are equal if no
    label and no verdict differs among at least 299 of these images. --int8-images should not be among --id. The exit
    code is 0, or 1 if some images could not be read; --json says whether they are `equal`.
    """
    from deltaenergy.evaluation.backend_check import check_model

    found = check_model(model, images, open_images, on=on, score=score, calibration_images=int8_images)
    print_json(found.to_dict()) if json else _print_agreement(found)
    results.finish(found.unreadable)


def _print_agreement(found: BackendAgreement) -> None:
    rows = [
        (name, f"{total - differ:,} of {total:,} agree ({1 - differ / total:.2%})")
        for name, differ, total in (
            ("labels", found.labels_differ, found.known),
            ("labels, open set", found.open_labels_differ, found.images - found.known),
            ("verdicts, torch's threshold", found.verdicts_differ, found.judged),
            ("verdicts, own thresholds", found.own_verdicts_differ, found.judged),
        )
        if total
    ]
    thresholds = ["none" if one is None else f"{one:.6g}" for one in found.thresholds]
    rows.append(("thresholds", f"{thresholds[0]} on torch, {thresholds[1]} here"))
    if found.difference is not None and found.auroc is not None:
        change, low, high = found.difference
        rows.append(("AUROC", f"{found.auroc:.4f} on torch, {change:+.4f} here ({low:+.4f} to {high:+.4f})"))
    deviation = f"the scores' standard deviation is {found.score_deviation:.3g}"
    rows.append(("largest score difference", f"{found.largest_score_difference:.3g} ({deviation})"))
    rows.append(("least cosine of features", f"{found.least_cosine:.6f}"))
    ours, theirs = found.milliseconds
    batches = f"batches {min(found.ratios):.2f}× to {max(found.ratios):.2f}×"
    rows.append(("speed", f"{found.speed:.2f}× torch ({ours:.1f} ms per image against {theirs:.1f}; {batches})"))
    out.print(f"{found.model}: {found.backend}, {found.precision} next to torch, fp32; {found.score}")
    print_table(["", ""], rows, header=False)
    out.print(found.conclusion(), style="green" if found.equal else "yellow")
