"""`deltaenergy explain`: heatmaps of what supports a class or drives the score, as a page or as one PNG per image."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from deltaenergy.cli.shell import options as o
from deltaenergy.cli.shell import results
from deltaenergy.cli.shell.app import command
from deltaenergy.cli.shell.console import err
from deltaenergy.core.text import counted

MapMethod = Literal["auto", "grad-cam", "rollout", "occlusion", "value-path"]


@command(
    "Use",
    "deltaenergy explain photos/ --detector detector/ --out page.html",
    "deltaenergy explain photos/ --detector detector/ --target score --out maps/",
    'deltaenergy explain dog.jpg --classes "dog,cat,horse" --target cat --method occlusion --out page.html',
)
def explain(
    images: o.ImagesArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="Page FILE.html, or a folder for one PNG per image.")],
    detector: o.DetectorOption = None,
    classes: o.ClassesOption = None,
    model: o.ModelOption = None,
    target: Annotated[
        str, typer.Option(help="What to explain: class (the predicted one), score, or a class name.")
    ] = "class",
    method: Annotated[
        MapMethod, typer.Option(help="Heatmap: grad-cam for convolutional models, rollout for transformers.")
    ] = "auto",
    on: o.OnOption = "auto",
) -> None:
    """Show which parts of each image support its class or drive its score.

    Pass --detector (from calibrate or tune), or --classes. The page also shows, for a rejected image, why it was
    rejected, and ΔEnergy by class for every image.
    """
    from deltaenergy.explanation import write_explanations

    by = o.by_options(detector, classes, model)
    done = write_explanations(by, o.read_images(images), out, method, target, on=on, command=o.typed())
    err.print(f"{counted(done.images, 'image')} explained. Written to {out}")
    results.finish(done.unreadable)
