"""`deltaenergy score` and `adapt`: class, confidence, score and verdict for every image."""

from __future__ import annotations

from typing import Annotated

import typer

from deltaenergy.cli.shell import options as o
from deltaenergy.cli.shell import results
from deltaenergy.cli.shell.app import command
from deltaenergy.cli.shell.console import err
from deltaenergy.core.text import counted
from deltaenergy.errors import InputError

TableOption = Annotated[
    str | None,
    o.unset("--out", "-o", help="Write FILE.csv, .jsonl, .parquet or .xlsx (also a URL), or a folder named fiftyone."),
]


@command(
    "Use",
    'deltaenergy score photos/ --classes "dog,cat,horse"',
    'deltaenergy score photos/ --classes "dog,cat,horse" --id good/ --out verdicts.xlsx',
    "deltaenergy score photos/ --detector detector/ --report page.html",
    "find . -name '*.jpg' | deltaenergy score - --detector detector/ --top-k 3 --json",
    "deltaenergy score photos.store --detector detector/ --out verdicts.parquet --ray head:6379",
)
def score(
    images: o.ImagesArgument,
    detector: o.DetectorOption = None,
    classes: o.ClassesOption = None,
    model: o.ModelOption = None,
    template: o.TemplateOption = None,
    score: o.ScoreOption = None,
    known: o.KnownOption = None,
    keep: o.KeepOption = None,
    fdr: o.FdrOption = None,
    top_k: Annotated[int, o.count(help="Number of closest classes to report per image.")] = 1,
    out: TableOption = None,
    report: o.ReportOption = None,
    json: o.JsonOption = False,
    on: o.OnOption = "auto",
    ray: o.RayOption = None,
    workers: o.WorkersOption = None,
) -> None:
    """Classify images and reject those of none of the classes.

    With class names only, the threshold guarantees nothing. For a guarantee pass --detector (from calibrate or tune),
    or --id with known images. With --fdr, verdicts come after all images have been scored.
    """
    import deltaenergy as de

    given = o.read_images(images)
    if ray is not None:
        others: dict[str, object] = {"classes": classes, "template": template, "model": model, "score": score}
        others |= {"known": known, "keep": keep, "fdr": fdr, "report": report, "json": json or None}
        for name, value in others.items():
            if value is not None:
                raise InputError(f"`ray` cannot be combined with `{name}`: remove one of them.")
        done = de.scale.score_on_ray(given, detector, out, ray=ray, workers=workers, top_k=top_k, on=on)
        err.print(f"{counted(done.counts.images, 'image')} written to {out}")
        results.print_counts(done.counts)
        results.print_guarantee(done.detector)
        results.finish(done.unreadable)
        return
    if workers is not None:
        raise InputError("`workers` needs `ray`.")
    by = o.by_options(detector, classes, model, template)
    verdicts = de.score(
        given, by, score=score, known=o.read_images(known) if known else None, keep=keep, fdr=fdr, top_k=top_k, on=on
    )
    results.show(verdicts, out=out, report=report, json=json)


@command("Use", 'deltaenergy adapt today/ --classes "dog,cat,horse" --id good/ --out verdicts.csv')
def adapt(
    images: o.ImagesArgument,
    classes: o.ClassesOption = None,
    model: o.ModelOption = None,
    template: o.TemplateOption = None,
    method: Annotated[
        str, typer.Option(autocompletion=o.completing(lambda: ("adaneg", "tanl")), help="adaneg or tanl.")
    ] = "adaneg",
    known: o.KnownOption = None,
    keep: o.KeepOption = None,
    out: TableOption = None,
    json: o.JsonOption = False,
    on: o.OnOption = "auto",
) -> None:
    """Classify images in their order, adapting to those that came before.

    Results depend on the order, and there are no p-values. Verdicts need a threshold: pass --id with known images.
    """
    import deltaenergy as de

    by = o.by_options(None, classes, model, template)
    known_images = o.read_images(known) if known else None
    verdicts = de.adapt(
        o.read_images(images), by, method, known=known_images, keep=0.95 if keep is None else keep, on=on
    )
    results.show(verdicts, out=out, json=json)
