"""`deltaenergy features` and `verify`: encode images once into a feature store, check its bytes and repair them."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from deltaenergy.cli.shell import common
from deltaenergy.cli.shell.common import err, out
from deltaenergy.cli.shell.options import RayOption
from deltaenergy.errors import InputError


def features(
    images: Annotated[
        list[str],
        typer.Argument(
            help="Folders, files, globs, tables with a path column, WebDataset .tar files, or hf:NAME[:SPLIT]."
        ),
    ],
    out_folder: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder or URL of the feature store; created, or resumed.",
            show_default=False,
        ),
    ] = None,
    model: common.ModelOption = "lite",
    patches: Annotated[bool, typer.Option("--patches", help="Store patch features too (much larger).")] = False,
    shard_size: Annotated[
        int | None,
        typer.Option(
            "--shard-size", min=1, help="Images per shard. Default: by their number, at most 1024; 128 with patches."
        ),
    ] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="float32 or float16. Default: float32.")] = None,
    dataset: Annotated[
        str | None,
        typer.Option("--dataset", help="A known data set (see data list); the argument is then the data root."),
    ] = None,
    split: Annotated[str | None, typer.Option("--split", help="Its split: train, val or test. Default: all.")] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Try images again that could not be read before.")] = False,
    json_output: common.JsonOption = False,
    device: common.DeviceOption = "auto",
    backend: common.BackendOption = None,
    precision: common.PrecisionOption = "auto",
    calibrate_on: common.CalibrateOnOption = None,
    batch_size: common.BatchOption = 32,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", min=1, max=1024, help="Number of encoding processes. Default: this process, on all cores."
        ),
    ] = None,
    ray: RayOption = None,
) -> None:
    """Encode images once into a feature store that other commands accept instead of images.

    Run it again to resume after an interruption, to add images, or to encode files that changed. Unreadable images are
    recorded in the store and listed.
    """
    if out_folder is None:
        raise InputError("Missing --out FOLDER (feature store to create or resume).")
    place = common.ModelPlace(device, backend, precision, calibrate_on)
    from deltaenergy.scale.build import build_store

    if dataset is not None:
        given = _of_dataset(dataset, images, split)
    elif split is not None:
        raise InputError("--split belongs to --dataset: name a data set, or give hf:NAME:SPLIT.")
    else:
        given = _with_hub(common.read_image_arguments(images))
    # On Ray the device is the workers'; this process only plans.
    loaded = common.load_model_with_status(model, place if ray is None else replace(place, device="cpu"))
    with common.progress_bar("Encoding") as progress:
        store = build_store(
            loaded,
            given,
            out_folder,
            patches=patches,
            dtype=dtype,
            shard_size=shard_size,
            retry_unreadable=retry,
            batch_size=batch_size,
            workers=workers,
            ray=ray,
            device=device,
            progress=progress,
        )
    unreadable = store.unreadable
    readable = len(store) - len(unreadable)
    if json_output:
        common.print_json(
            {
                "store": str(store.path),
                "model": store.model,
                "images": readable,
                "patches": store.has_patches,
                "unreadable": [{"path": image.id, "reason": image.reason} for image in unreadable],
            }
        )
    else:
        out.print(f"{store.path}: {readable} image(s)", markup=False)
        err.print("Give this folder wherever images are asked for.", style="dim")
    common.finish(unreadable)


def verify(
    stores: Annotated[list[str], typer.Argument(help="Feature stores.")],
    repair: Annotated[
        str | None,
        typer.Option("--repair", metavar="IMAGES", help="Encode damaged shards again from the store's images."),
    ] = None,
    json_output: common.JsonOption = False,
) -> None:
    """Read every byte of feature stores and name damaged files, or repair them."""
    from deltaenergy.scale.build import repair_store
    from deltaenergy.store.store import verify_store

    for store in stores if repair is not None else ():
        with common.progress_bar("Repairing") as progress:
            damaged = repair_store(store, repair, progress=progress)
        for name in damaged:
            err.print(f"{store}: {name} was damaged, and is repaired", markup=False)
    sound = [verify_store(store) for store in stores]
    if json_output:
        common.print_json([{"store": str(store.path), "images": len(store)} for store in sound])
        return
    for checked in sound:
        out.print(f"{checked.path}: {len(checked)} image(s), every byte as it was written", markup=False)


def _of_dataset(name: str, roots: list[str], split: str | None) -> Any:
    """The images of a data set, with canonical labels and its domains."""
    from deltaenergy.data.catalogue.dataset import get_dataset

    if len(roots) != 1:
        raise InputError(f"--dataset {name} takes one data root, not {len(roots)} arguments.")
    return get_dataset(name).images(roots[0], split)


def _with_hub(images: str | list[str]) -> Any:
    """The arguments, with the images of `hf:` data sets in their places."""
    from deltaenergy.data.formats.hub import hub_images

    given = [images] if isinstance(images, str) else images
    if not any(argument.startswith("hf:") for argument in given):
        return images
    expanded: list[Any] = []
    for argument in given:
        expanded += hub_images(argument) if argument.startswith("hf:") else [argument]
    return expanded
