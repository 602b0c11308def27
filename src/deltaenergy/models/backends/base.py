"""A model whose image tower runs outside eager torch: the engine, and the model around it.

The tower is exported from the torch module as one graph, pixels -> (image features, patch features). Text stays in
torch: it is encoded once per class list, so there is nothing to gain.
"""

from __future__ import annotations

import contextlib
import importlib
import tempfile
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import nn

from deltaenergy.errors import InputError
from deltaenergy.files import hash_strings
from deltaenergy.files.atomic import sync_file, sync_folder, temporary_folder
from deltaenergy.files.cache import cache_folder
from deltaenergy.models.base import TowerModel

FORMAT = "deltaenergy export 1"
Opened = TypeVar("Opened")


class ImageTower(nn.Module):
    """A model's image tower as a module: pixels -> unit image features, and unit patch features on request."""

    def __init__(self, model: TowerModel, *, patches: bool) -> None:
        super().__init__()
        # The exporter must see its weights as weights; the model itself is not a module.
        for name, value in vars(model).items():
            if isinstance(value, nn.Module):
                self.add_module(name, value)
        object.__setattr__(self, "model", model)
        self.patches = patches

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(B, 3, side, side) -> (B, D), and (B, P, D) on request."""
        model: Any = self.model
        return tuple(model.image_and_patch_features(pixels)) if self.patches else (model.image_features(pixels),)


class TowerEngine(ABC):
    """An image tower that is ready to run. Safe to call from several threads."""

    @abstractmethod
    def run(self, pixels: torch.Tensor, *, patches: bool) -> tuple[torch.Tensor, ...]:
        """Pixels (B, 3, side, side) -> unit features (B, D), and unit patch features (B, P, D) on request."""


class CompiledEngine(TowerEngine):
    """torch.compile on a GPU: the same tower, fused into fewer kernels when it first runs, with and without patches."""

    def __init__(self, model: TowerModel) -> None:
        self._towers = {
            patches: torch.compile(ImageTower(model, patches=patches).eval(), dynamic=True) for patches in (False, True)
        }

    def run(self, pixels: torch.Tensor, *, patches: bool) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            found: tuple[torch.Tensor, ...] = self._towers[patches](pixels)
        return found


class BackendModel(TowerModel):
    """`base` with its image tower on another backend, and its own fingerprint.

    No gradients pass through the tower, and no learned tokens can be put into it.
    """

    def __init__(self, base: TowerModel, engine: TowerEngine, backend: str, precision: str, tag: str) -> None:
        self.base, self.engine = base, engine
        self.name, self.feature_dim = base.name, base.feature_dim
        self.logit_scale, self.logit_bias = base.logit_scale, base.logit_bias
        self.device, self.dtype = base.device, base.dtype
        self.text, self.preprocessing = base.text, base.preprocessing
        self.backend, self._precision = backend, precision
        self.fingerprint = f"{base.fingerprint}+{tag}"
        self.closed = f"runs on the backend {backend!r}, which has no gradients. Load it with `backend='torch'`"
        if backend == "torch":
            self.closed = "runs in 8 bits, which has no gradients. Load it with `precision='fp32'`"
        self.why_no_vision = self.closed

    @property
    def precision(self) -> str:
        """Precision of the image tower; the text tower computes in `dtype`."""
        return self._precision

    def describe(self) -> dict[str, Any]:
        own = super().describe()
        return {**self.base.describe(), **own}

    def image_features(self, pixels: torch.Tensor) -> torch.Tensor:
        return self._run(pixels, patches=False)[0]

    def image_and_patch_features(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features, patches = self._run(pixels, patches=True)
        return features, patches

    def _run(self, pixels: torch.Tensor, *, patches: bool) -> tuple[torch.Tensor, ...]:
        if torch.is_grad_enabled() and pixels.requires_grad:
            raise InputError(f"Gradients through the image encoder were requested, but {self.name!r} {self.closed}.")
        side = self.preprocessing.crop
        if pixels.ndim != 4 or tuple(pixels.shape[1:]) != (3, side, side) or not len(pixels):
            raise InputError(
                f"pixels must have the shape (images, 3, {side}, {side}), one image or more, got {tuple(pixels.shape)}."
            )
        return self.engine.run(pixels, patches=patches)


def library(name: str, backend: str, extra: str) -> ModuleType:
    """A library that a backend needs, or an error that names its extra."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"backend {backend!r} needs {name}, which cannot be imported ({error}): pip install 'deltaenergy[{extra}]'."
        ) from error


def exported_program(model: TowerModel, *, patches: bool) -> Any:
    """The image tower as torch.export gives it, for any number of images at a time."""
    side = model.preprocessing.crop
    example = torch.zeros(2, 3, side, side)
    with torch.inference_mode(False), torch.no_grad():
        return torch.export.export(
            ImageTower(model, patches=patches).eval(), (example,), dynamic_shapes=({0: torch.export.Dim("images")},)
        )


def opened_export(
    tower: str, make: Callable[[Path], None] | None, open_folder: Callable[[Path], Opened]
) -> Opened | None:
    """Open the export of a tower: from the cache if possible, else made now.

    Exports are in the user's cache, `backends/<hash of fingerprint, backend and precision>/`, whole or not there: a
    folder is made under a temporary name and renamed.

    Args:
        tower: the fingerprint of the model and a tag.
        make: writes the export's files into an empty folder; None if it cannot be made, which gives None.
        open_folder: loads them.
    """
    target = cache_folder() / "backends" / hash_strings([FORMAT, tower])
    if target.is_dir():
        with contextlib.suppress(Exception):  # any error of the backend's library, such as for another version
            return open_folder(target)
    if make is None:
        return None
    try:
        with temporary_folder(target.parent) as temporary:
            new = temporary / "new"
            new.mkdir()
            make(new)
            for file in new.iterdir():
                sync_file(file)
            if target.exists():
                target.rename(temporary / "old")
            with contextlib.suppress(FileExistsError):  # another run was faster
                new.rename(target)
            sync_folder(target.parent)
        return open_folder(target)
    except OSError as error:
        warnings.warn(
            f"The exported encoder could not be cached ({error}), so it is made again each time. Set DELTAENERGY_CACHE "
            "to a folder with space.",
            stacklevel=2,
        )
    with tempfile.TemporaryDirectory(prefix="deltaenergy-") as folder:
        make(Path(folder))
        return open_folder(Path(folder))
