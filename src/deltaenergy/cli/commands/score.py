"""`deltaenergy score`: class, confidence, score and verdict for every image; a page of them, and folders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deltaenergy.cli.commands.ray_scored import check_goes_with_ray, score_with_ray
from deltaenergy.cli.shell import common, sorted_files
from deltaenergy.cli.shell.common import err
from deltaenergy.cli.shell.options import RayOption, WorkersOption, check_count
from deltaenergy.cli.shell.records import guarantee_record, unreadable_records
from deltaenergy.cli.shell.results import Rows, emit, print_counts, print_guarantee
from deltaenergy.detector.verdict_files import check_output
from deltaenergy.errors import InputError

if TYPE_CHECKING:
    from deltaenergy.data.items import ImageItem
    from deltaenergy.detector.detector import Detector
    from deltaenergy.detector.verdict import Verdict
    from deltaenergy.detector.verdicts import Verdicts
    from deltaenergy.scores.availability import Given


def score(
    context: typer.Context,
    images: Annotated[
        list[str],
        typer.Argument(help="Files, folders, globs, a table with a path column, or - for standard input."),
    ],
    classes: common.ClassesOption = None,
    model: common.ModelOption = "lite",
    score_name: common.OneScoreOption = None,
    template: common.TemplateOption = None,
    detector: common.DetectorOption = None,
    id_images: Annotated[
        list[str] | None,
        typer.Option("--id", help="In-distribution images to set the threshold with, if there is no --detector."),
    ] = None,
    keep: common.KeepOption = 0.95,
    confidence: common.ConfidenceOption = None,
    fdr: common.FdrOption = None,
    out_file: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Write the table to FILE.csv, .jsonl or .parquet, or to a folder called fiftyone."
        ),
    ] = None,
    adapt: Annotated[
        str | None,
        typer.Option(help="Adapt to the images as they come: adaneg or tanl. Order matters, there are no p-values."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", "-r", help="Write the verdicts with their images to FILE.html.")
    ] = None,
    copy_to: sorted_files.CopyOption = None,
    link_to: sorted_files.LinkOption = None,
    move_to: sorted_files.MoveOption = None,
    dry_run: sorted_files.DryRunOption = False,
    top_k: Annotated[
        int, typer.Option("--top-k", min=1, callback=check_count, help="Show this many of the closest classes.")
    ] = 1,
    json_output: common.JsonOption = False,
    device: common.DeviceOption = "auto",
    backend: common.BackendOption = None,
    precision: common.PrecisionOption = "auto",
    calibrate_on: common.CalibrateOnOption = None,
    batch_size: common.BatchOption = 32,
    ray: RayOption = None,
    workers: WorkersOption = None,
) -> None:
    """Say which class each image is, how sure that is, and whether it is any of the classes.

    The verdict, known or none of these, needs a threshold: give --detector (written by calibrate or tune), or --id
    with known images. Without either, the table has labels and scores only. With --fdr, verdicts come at the
    end, when all images have been looked at.
    """
    from deltaenergy.detector.detector import Detector
    from deltaenergy.detector.verdicts import Verdicts, VerdictStream
    from deltaenergy.scoring import stream_scores
    from deltaenergy.source import load_images
    from deltaenergy.store.store_pass import names_a_store

    place = common.ModelPlace(device, backend, precision, calibrate_on)
    check_output(out_file)
    common.check_report(report)
    if ray is not None:
        own = {
            "classes": classes,
            "score": score_name,
            "template": template,
            "id": id_images,
            "fdr": fdr,
            "adapt": adapt,
        }
        acts = {"report": report, "copy_to": copy_to, "link_to": link_to, "move_to": move_to, "json": json_output}
        check_goes_with_ray(detector, out_file, **own, **acts)
    elif workers is not None:
        raise InputError("--workers belongs to --ray: add it, or leave --workers out.")
    if adapt is None:
        own_parts = ("classes", "score_name", "template", "id_images", "model", "keep", "confidence")
        common.refuse_beside_detector(context, detector, *own_parts)
    request = sorted_files.sort_request(copy_to, link_to, move_to, dry_run)
    if fdr is not None and detector is None and not id_images:
        raise InputError("--fdr needs known images to compare with: give --detector, or --id with some.")
    acting = [*(["--report"] if report else []), *([request.option] if request else [])]
    if acting and not detector and not id_images:
        raise InputError(f"{acting[0]} needs verdicts, and these a threshold: add --id DIR or --detector DIR.")
    # Resolved before the model is loaded, so that a mistyped path is reported at once; a store is read as it goes.
    given = common.read_image_arguments(images)
    items = given if names_a_store(given) else common.list_images(given, hold=request is not None)
    if ray is not None and detector is not None and out_file is not None:
        score_with_ray(ray, workers, detector, items, out_file, place, top_k, batch_size)
        return
    if request is not None:
        sorted_files.check_request(request, given, items)
    if adapt is not None:
        others = (("--score", score_name), ("--detector", detector), *((option, True) for option in acting))
        for name, value in (*others, ("--top-k", top_k > 1), ("--fdr", fdr)):
            if value:
                raise InputError(f"--adapt {adapt} has a score, a threshold and a table of its own: leave {name} out.")
        from deltaenergy.cli.commands.adapt import score_adapted
        from deltaenergy.scores.adaptive import make_adapter

        make_adapter(adapt)
        id_items = load_images(id_images[0] if len(id_images) == 1 else id_images) if id_images else []
        classifier = common.zero_shot(model, place, classes, template)
        score_adapted(classifier, adapt, items, id_items, keep, out_file, json_output, batch_size)
        return
    if detector is not None:
        judge = common.prepare(common.load_detector(detector, place))
    else:
        id_items = load_images(id_images[0] if len(id_images) == 1 else id_images) if id_images else []
        used = common.one_score(score_name, _given(items, id_items, place))
        judge = common.prepare(Detector(common.zero_shot(model, place, classes, template), used))
        if id_items:
            _calibrate(judge, id_items, keep, confidence, batch_size)
    if fdr is not None:
        judge.check_controls(fdr)
    with common.progress_bar("Scoring") as progress:
        batches = stream_scores(
            judge.classifier, [judge.scorer], items, top_k=top_k, batch_size=batch_size, progress=progress
        )
        stream = VerdictStream(judge.judge(batch, top_k) for batch in batches)

        def document(rows: Rows) -> dict[str, Any]:
            return {
                "model": judge.classifier.model.describe(),
                "classes_hash": judge.classifier.classes_hash,
                "score": judge.score.spec,
                "threshold": judge.threshold,
                "guarantee": guarantee_record(judge),
                "fdr": fdr,
                "images": rows,
                "unreadable": unreadable_records([*judge.unreadable, *stream.unreadable]),
                "counts": stream.counts.to_dict(),
            }

        def show(parts: Iterable[Verdicts]) -> None:
            emit(
                parts,
                judge.classifier.classes,
                top_k=top_k,
                out_file=out_file,
                document=document if json_output else None,
            )

        # What else was requested is done before anything is printed: a reader of standard output that goes away must
        # not stop it. A table on disk is written as its rows come.
        print_later = bool(acting) and (out_file is None or json_output)
        parts = stream.batches()
        if fdr is not None:
            stream = VerdictStream([_controlled(judge, list(parts), fdr)])
            parts = stream.batches()
        whole = list(parts) if acting else []
        if not print_later:
            show(whole or parts)
    found = [item for part in whole for item in part.items]
    if request is not None:
        found = _sort(found, [verdict for part in whole for verdict in part], request)
    unreadable = [*judge.unreadable, *stream.unreadable]
    if report is not None:
        _write_report(judge, replace(Verdicts.concat(whole), unreadable=unreadable), found, report)
    if print_later:
        show(whole)
    print_counts(stream.counts)
    print_guarantee(judge, fdr)
    common.finish(unreadable)


def _controlled(detector: Detector, parts: list[Verdicts], fdr: float) -> Verdicts:
    """All verdicts, decided together."""
    from deltaenergy.detector.verdicts import Verdicts

    items = [item for part in parts for item in part.items]
    return replace(detector.control(Verdicts.concat(parts), fdr), items=items)


def _write_report(detector: Detector, verdicts: Verdicts, items: list[ImageItem], report: Path) -> None:
    from deltaenergy.files import keeping_result
    from deltaenergy.report import write_report

    with common.status("Writing the report …"):
        keeping_result(
            report,
            lambda place: write_report(verdicts, place, detector=detector, items=items, command=common.typed()),
            what="The report",
        )
    err.print(f"Report written to {report}")


def _sort(items: list[ImageItem], verdicts: list[Verdict], request: sorted_files.SortRequest) -> list[ImageItem]:
    """Sort the files; gives the images where they are then, for the report."""
    from deltaenergy.sorting import JudgedFile

    files = [sorted_files.file_of(item, request.option) for item in items]
    entries = [JudgedFile(file, one.label, bool(one.is_ood)) for file, one in zip(files, verdicts)]
    moved = sorted_files.act(request, entries)
    return [replace(item, source=moved.get(file, file)) for file, item in zip(files, items)]


def _calibrate(
    detector: Detector, images: list[ImageItem], keep: float, confidence: float | None, batch_size: int
) -> None:
    import warnings

    with common.progress_bar("Calibrating") as progress, warnings.catch_warnings():
        # Both are printed at the end.
        warnings.filterwarnings("ignore", message=".*calibration image.*")
        detector.calibrate(images, keep, confidence, batch_size=batch_size, progress=progress)


def _given(images: Any, id_images: list[ImageItem], place: common.ModelPlace) -> Given:
    """What is there for scores, before a model is loaded and a prompt encoded."""
    from deltaenergy.scores.availability import Lack, closed_tower, given_by, unlabelled

    nothing = Lack("no --id", "it is fitted on known images. Give some with --id, or a --detector.")
    given = given_by([images, id_images]).without(labels=unlabelled(id_images))
    return given.without(id_data=None if id_images else nothing, pixels=closed_tower(place.backend, place.precision))
