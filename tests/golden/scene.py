"""What golden outputs are made from: small images, a tiny CLIP, a detector, and commands run in this process."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import sys
import warnings
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import deltaenergy as de
from deltaenergy.cli.main import run
from tests.labelled_pictures import CLASSES, write_pictures


class Scene:
    """Images of three classes, known ones and noise, and a checkpoint: below one folder, which is the current one."""

    def __init__(self, folder: Path, checkpoint: Path) -> None:
        self.folder = folder
        write_pictures(folder / "images")
        write_pictures(folder / "known", seed=5)
        (folder / "others").mkdir()
        rng = np.random.default_rng(1)
        for i in range(6):
            pixels = rng.integers(0, 256, (36 + 4 * i, 44, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "others" / f"{i}.png")
        for file in folder.rglob("*.png"):
            os.utime(file, (1e9, 1e9))  # stores record it
        shutil.copytree(checkpoint, folder / "tiny")
        draw_weights(folder / "tiny" / "model.safetensors")

    @cached_property
    def tiny(self) -> de.Model:
        """A ViT with random weights."""
        return de.load_model("tiny")

    @cached_property
    def lite(self) -> de.Model:
        """The bundled model."""
        return de.load_model("lite")

    @cached_property
    def detector(self) -> de.Detector:
        """Calibrated on the tiny model, and saved as `detector`."""
        made = de.Detector(de.ZeroShotClassifier(self.tiny, CLASSES), "delta-energy").calibrate("known", keep=0.8)
        made.save("detector")
        return made

    def command(self, *arguments: str) -> str:
        """Run one command; returns what it prints."""
        printed = io.StringIO()
        # Commands print warnings by a hook of their own; here nobody reads them.
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(printed))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            stack.enter_context(warnings.catch_warnings())
            stack.enter_context(mock.patch.object(sys, "argv", ["deltaenergy", *arguments]))  # pages name the command
            warnings.simplefilter("ignore")
            try:
                run(arguments)
            except SystemExit as ended:
                if ended.code:
                    raise RuntimeError(f"{arguments} ended with {ended.code}") from None
        return printed.getvalue()

    def json(self, *arguments: str) -> Any:
        """Run one command with --json."""
        return without_times(json.loads(self.command(*arguments, "--json")))

    def page(self, file: str) -> str:
        """An HTML page as a reader sees it: without embedded images, times, versions and places."""
        return normalised(Path(file).read_text(encoding="utf-8"), self.folder)


def draw_weights(file: Path) -> None:
    """Other random weights of the same scale, drawn by NumPy: torch draws others on other processors."""
    rng, tensors = np.random.default_rng(0), load_file(file)
    for name, tensor in sorted(tensors.items()):
        scale = round(float(tensor.std(correction=0)), 3) if tensor.is_floating_point() and tensor.ndim else 0.0
        if scale:
            tensors[name] = torch.from_numpy(rng.normal(0, scale, tensor.shape).astype(np.float32))
    save_file(tensors, file, metadata={"format": "pt"})


# Entries of JSON that say when and where it was made, or how long that took.
_PASSING = ("seconds", "time", "date", "created", "created_at", "versions", "version", "environment", "provenance")


def without_times(value: Any) -> Any:
    """JSON without entries that differ from run to run."""
    if isinstance(value, dict):
        return {key: without_times(part) for key, part in value.items() if key not in _PASSING}
    return [without_times(part) for part in value] if isinstance(value, list) else value


def normalised(text: str, folder: Path) -> str:
    """Text in which places, times, versions and embedded images are replaced by a word."""
    text = text.replace(str(folder), "FOLDER").replace(os.path.realpath(folder), "FOLDER")
    text = re.sub(r"data:image/[\w+]+;base64,[A-Za-z0-9+/=]+", "IMAGE", text)
    text = re.sub(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d| UTC)?)?", "TIME", text)
    text = re.sub(r"\d+(\.\d+)? ?(ms|s)\b", "DURATION", text)
    return re.sub(r"\b\d+\.\d+\.\d+(\+\w+|[a-z]+\d+)?\b", "VERSION", text)
