"""`deltaenergy features` and `verify`: encode images once into a feature store, and check the bytes of one."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import typer

from deltaenergy.cli.shell import options as o
from deltaenergy.cli.shell import results
from deltaenergy.cli.shell.app import command
from deltaenergy.cli.shell.console import err, out, print_json
from deltaenergy.core.text import counted
from deltaenergy.errors import InputError


@command(
    "Operate",
    "deltaenergy features photos/ --out store/",
    "deltaenergy features photos/ --out fast-store/ --on openvino",
)
def features(
    images: Annotated[
        list[str],
        typer.Argument(
            help="Folders, files, globs, tables with a path column, WebDataset .tar files, or hf:NAME[:SPLIT]."
        ),
    ],
    store: Annotated[
        str, typer.Option("--out", "-o", help="The store's folder, or its URL in cloud storage; created, or resumed.")
    ],
    model: o.ModelOption = None,
    patches: Annotated[bool, typer.Option("--patches", help="Also store patch features (much larger).")] = False,
    shard_size: Annotated[
        int | None,
        typer.Option(min=1, help="Images per shard.", show_default="by their number, at most 1024; 128 with patches"),
    ] = None,
    dtype: Annotated[
        Literal["float32", "float16"] | None, typer.Option(help="Precision of stored features.", show_default="float32")
    ] = None,
    dataset: Annotated[
        str | None, o.unset(help="A known dataset (see datasets); IMAGES is then the data root.")
    ] = None,
    split: Annotated[
        Literal["train", "val", "test"] | None, typer.Option(help="Split of the dataset.", show_default="all")
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Retry images that could not be read before.")] = False,
    json: o.JsonOption = False,
    on: o.OnOption = "auto",
    int8_images: o.Int8Option = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            help="Number of worker processes.",
            show_default="one process on all cores; on Ray one per CPU or GPU",
        ),
    ] = None,
    ray: o.RayOption = None,
) -> None:
    """Encode images once into a feature store that other commands accept instead of images.

    Run it again to resume after an interruption, to add images, or to encode files that changed. Unreadable images are
    recorded in the store and listed.
    """
    from deltaenergy.core.progress import stage
    from deltaenergy.models.on import On
    from deltaenergy.scale.build import build_store
    from deltaenergy.source import as_source

    place = On.of(on)
    place.check(int8_images)
    given = as_source(_given(images, dataset, split))
    # On Ray the device is the workers'; this process only plans.
    here = place if ray is None else replace(place, device="cpu")
    with stage("Loading the model"):
        loaded = here.load_model(model or "lite", int8_images)
    with stage("Encoding") as progress:
        made = build_store(
            loaded,
            given,
            store,
            patches=patches,
            dtype=dtype,
            shard_size=shard_size,
            retry_unreadable=retry,
            batch_size=place.batch_size,
            workers=workers,
            ray=ray,
            device=place.device,
            progress=progress,
        )
    readable = len(made) - len(made.unreadable)
    if json:
        print_json(
            {
                "store": str(made.path),
                "model": made.model,
                "images": readable,
                "patches": made.has_patches,
                "unreadable": results.unreadable_records(made.unreadable),
            }
        )
    else:
        out.print(f"{made.path}: {counted(readable, 'image')}")
        err.print("Other commands accept this folder instead of images.", style="dim")
    results.finish(made.unreadable)


def _given(images: list[str], dataset: str | None, split: str | None) -> Any:
    """The images that the arguments name: paths, datasets of the Hub, or a known dataset."""
    if dataset is not None:
        from deltaenergy.data.catalogue.dataset import get_dataset

        if len(images) != 1:
            raise InputError(f"`dataset` {dataset} takes one data root, not {len(images)} arguments.")
        return get_dataset(dataset).images(images[0], split)
    if split is not None:
        raise InputError("`split` needs `dataset`; for a dataset of the Hub write hf:NAME:SPLIT.")
    given = o.read_images(images)
    listed = [given] if isinstance(given, str) else given
    if not any(argument.startswith("hf:") for argument in listed):
        return given
    from deltaenergy.data.formats.hub import hub_images

    return [image for one in listed for image in (hub_images(one) if one.startswith("hf:") else [one])]


@command("Operate", "deltaenergy verify store/", "deltaenergy verify store/ --repair photos/")
def verify(
    stores: Annotated[list[str], typer.Argument(help="Feature stores.")],
    repair: Annotated[
        str | None, o.unset(metavar="IMAGES", help="Encode damaged shards again from the store's images.")
    ] = None,
    json: o.JsonOption = False,
) -> None:
    """Read every byte of feature stores and name damaged files, or repair them."""
    from deltaenergy.core.progress import stage
    from deltaenergy.scale.build import repair_store
    from deltaenergy.store.store import verify_store

    for path in stores if repair is not None else ():
        with stage("Repairing") as progress:
            damaged = repair_store(path, repair, progress=progress)
        for name in damaged:
            err.print(f"{path}: {name} was damaged, and is repaired", markup=False)
    sound = [verify_store(store) for store in stores]
    if json:
        print_json([{"store": str(store.path), "images": len(store)} for store in sound])
    else:
        for store in sound:
            out.print(f"{store.path}: {counted(len(store), 'image')}, every byte as it was written")
