"""`deltaenergy clipn-train`: make the "no" tower that the score clipn needs, from images with texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deltaenergy.cli.shell import common
from deltaenergy.cli.shell.common import err, out
from deltaenergy.cli.shell.options import check_count, check_seed
from deltaenergy.cli.shell.records import unreadable_records
from deltaenergy.errors import InputError


def clipn_train(
    table: Annotated[
        Path, typer.Argument(help="CSV, JSONL or Parquet file with a path column and a text (or caption) column.")
    ],
    out_folder: Annotated[Path, typer.Option("--out", "-o", help="Folder for the tower.")],
    model: common.ModelOption = "lite",
    epochs: Annotated[int, typer.Option("--epochs", min=1, callback=check_count, help="Passes over the table.")] = 10,
    train_batch: Annotated[
        int, typer.Option("--train-batch", min=2, callback=check_count, help="Pairs per training step.")
    ] = 256,
    learning_rate: Annotated[float, typer.Option("--lr", help="Learning rate at the start.")] = 1e-4,
    prompts: Annotated[int, typer.Option("--prompts", min=1, max=10_000, help='Learned "no" prompts.')] = 16,
    seed: Annotated[int, typer.Option("--seed", min=0, callback=check_seed, help="Of prompts and batches.")] = 0,
    json_output: common.JsonOption = False,
    device: common.DeviceOption = "auto",
    backend: common.BackendOption = None,
    precision: common.PrecisionOption = "auto",
    calibrate_on: common.CalibrateOnOption = None,
    batch_size: common.BatchOption = 32,
) -> None:
    """Teach a copy of the model's text tower to say "no", on your own images with texts.

    Use the result as --score "clipn(no_tower=FOLDER)". After every epoch a checkpoint is kept: an interrupted run
    goes on where it stopped when the same command is given again.
    """
    from deltaenergy.data.formats.table import TABLE_EXTENSIONS, table_file_texts
    from deltaenergy.files import check_writable
    from deltaenergy.scores.clipn.training import NoRecipe, check_unfinished, encode_pairs, train_no_tower
    from deltaenergy.source import load_images

    place = common.Place(device, backend, precision, calibrate_on)
    check_writable(out_folder, folder=True, option="--out")
    check_unfinished(out_folder)
    recipe = NoRecipe(epochs=epochs, batch_size=train_batch, learning_rate=learning_rate, prompts=prompts, seed=seed)
    if table.suffix.lower() not in TABLE_EXTENSIONS:
        raise InputError(f"{table} is no table. Give a file that ends in {', '.join(sorted(TABLE_EXTENSIONS))}.")
    items = load_images(table)
    texts = table_file_texts(table)
    loaded = common.load_model_with_status(model, place)
    with common.progress_bar("Encoding images") as progress:
        pairs = encode_pairs(loaded, items, texts, progress, batch_size=batch_size)
    kept = f"Finished epochs are kept in {out_folder}: the same command goes on from there."
    with common.keeping(kept), common.progress_bar("Training") as progress:
        losses = train_no_tower(loaded, pairs, out_folder, recipe, progress=progress)
    if json_output:
        common.print_json(
            {
                "no_tower": str(out_folder),
                "pairs": len(pairs.texts),
                "losses": losses,
                "unreadable": unreadable_records(pairs.unreadable),
            }
        )
    else:
        err.print(
            f"Trained on {len(pairs.texts)} pairs; mean loss of the first epoch {losses[0]['loss']:.4f}, "
            f"of the last {losses[-1]['loss']:.4f}."
        )
        out.print(f'--score "clipn(no_tower={out_folder})"')
    common.finish(pairs.unreadable)
