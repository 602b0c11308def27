"""`deltaenergy features`: encode images once into a feature store, or check the bytes of one."""

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
            help="The store's folder, or its address on an object store; made, or gone on with.",
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
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every byte of the stores given, and name damaged files.")
    ] = False,
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
    """Encode images once into a store that every other command takes in place of images.

    Run it again to go on after an interruption, to add images, or to encode files that changed. Equal pictures are
    encoded once. Unreadable ones are recorded in the store and listed.
    """
    if verify:
        if out_folder is not None:
            raise InputError("--verify takes stores and writes nothing: leave --out away.")
        _verify(images, json_output)
        return
    if out_folder is None:
        raise InputError("Give --out FOLDER, the store that is made or gone on with; or --verify and a store.")
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


def _verify(stores: list[str], json_output: bool) -> None:
    from deltaenergy.errors import ArtifactError
    from deltaenergy.store.store import Store

    opened = [Store.open(store) for store in stores]
    for store in opened:
        if problems := store.verify():
            raise ArtifactError(f"{store.path} is damaged. " + "\n".join(problems))
    if json_output:
        common.print_json([{"store": str(store.path), "images": len(store)} for store in opened])
        return
    for store in opened:
        out.print(f"{store.path}: {len(store)} image(s), every byte as it was written", markup=False)


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
