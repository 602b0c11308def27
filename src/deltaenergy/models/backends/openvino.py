"""OpenVINO on the CPU: in float32, or in 8 bits after post-training quantisation with nncf.

One graph gives image and patch features, so both come from one quantised tower; without patches, that part is cut off.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import queue
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deltaenergy.core.text import counted
from deltaenergy.errors import InputError
from deltaenergy.models.backends.base import TowerEngine, exported_program, library
from deltaenergy.models.base import TowerModel
from deltaenergy.models.encoding import decode_ahead
from deltaenergy.models.towers.convolutional import ConvolutionalModel
from deltaenergy.source import Source, require_images

if TYPE_CHECKING:
    import numpy.typing as npt

XML, BIN = "tower.xml", "tower.bin"
# Ranges change little beyond a few hundred images; below a few dozen they depend on single images.
MOST, LEAST = 300, 30


class OpenVinoEngine(TowerEngine):
    """An exported tower, compiled for the CPU; the part with patches on demand.

    Callers that use one thread of torch, as parallel batches do, get one thread of OpenVINO: several such batches run
    at a time, and their bytes do not depend on the number of cores. Other callers get all cores, one batch after the
    other. Each variant is compiled on demand.
    """

    def __init__(self, folder: Path) -> None:
        with _quiet():
            self._openvino = library("openvino", "openvino", "openvino")
        self._whole = self._openvino.Core().read_model(folder / XML, folder / BIN)
        self._features = self._openvino.Core().read_model(folder / XML, folder / BIN)
        self._features.remove_result(self._features.output(1).get_node())
        self._cores = torch.get_num_threads()
        self._compiling, self._one_at_a_time = threading.Lock(), threading.Lock()
        self._compiled: dict[tuple[bool, bool], Any] = {}
        # Idle requests; each runs one computation at a time.
        self._idle: dict[tuple[bool, bool], queue.SimpleQueue[Any]] = {}

    def run(self, pixels: torch.Tensor, *, patches: bool) -> tuple[torch.Tensor, ...]:
        array = pixels.detach().to("cpu", torch.float32).contiguous().numpy()
        alone = torch.get_num_threads() > 1
        with self._one_at_a_time if alone else contextlib.nullcontext(), self._request(patches, alone) as request:
            request.infer([array], share_inputs=True)
            # Copied: the next computation reuses the buffer.
            found = [request.get_output_tensor(i).data.copy() for i in range(1 + patches)]
        return tuple(torch.from_numpy(one).to(pixels.device) for one in found)

    @contextlib.contextmanager
    def _request(self, patches: bool, alone: bool) -> Iterator[Any]:
        """An unshared request, on all cores or on one."""
        kind = (patches, alone)
        with self._compiling:
            if kind not in self._compiled:
                self._compiled[kind], self._idle[kind] = self._compile(*kind), queue.SimpleQueue()
        try:
            request = self._idle[kind].get_nowait()
        except queue.Empty:
            request = self._compiled[kind].create_infer_request()
        try:
            yield request
        finally:
            self._idle[kind].put(request)

    def _compile(self, patches: bool, alone: bool) -> Any:
        settings = {
            # On processors with bfloat16, OpenVINO would use it by default.
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": self._cores,
            "NUM_STREAMS": 1 if alone else self._cores,
            # Other processes may run here, each of which would bind itself to the same cores.
            "ENABLE_CPU_PINNING": False,
        }
        return self._openvino.compile_model(self._whole if patches else self._features, "CPU", settings)


@dataclass(frozen=True)
class CalibrationPixels:
    """Preprocessed images (N, 3, side, side), and the hash of them."""

    pixels: npt.NDArray[np.float32]
    digest: str


def calibration_pixels(model: TowerModel, source: Source) -> CalibrationPixels:
    """At most `MOST` of the images, evenly spaced over them all; unreadable images are skipped."""
    items = list(require_images(source, "calibration_images"))
    chosen = [items[i] for i in np.unique(np.linspace(0, len(items) - 1, min(MOST, len(items))).round().astype(int))]
    found = [pixels for _, pixels in decode_ahead(model, chosen, ahead=64)]
    readable = [pixels for pixels in found if not isinstance(pixels, str)]
    if len(readable) < LEAST:
        raise InputError(
            f"calibration_images has {counted(len(readable), 'readable image')}; 8-bit ranges need at least {LEAST} "
            "that look like yours."
        )
    if len(readable) < len(found):
        warnings.warn(f"Skipped {counted(len(found) - len(readable), 'unreadable calibration image')}.", stacklevel=3)
    array = np.stack(readable)
    return CalibrationPixels(array, hashlib.blake2b(array.data, digest_size=8).hexdigest())


def write_openvino(model: TowerModel, folder: Path, calibration: CalibrationPixels | None) -> None:
    """Export the image tower to `folder`; with calibration images, quantised to 8 bits."""
    with _quiet():
        openvino = library("openvino", "openvino", "openvino")
        converted = openvino.convert_model(exported_program(model, patches=True))
        side = model.preprocessing.crop
        converted.reshape([-1, 3, side, side])
        if calibration is not None:
            converted = _quantised(converted, model, calibration)
        openvino.serialize(converted, folder / XML, folder / BIN)


def quantiser_version() -> str:
    """The version of nncf: another may set other ranges from the same images."""
    with _quiet():
        return str(library("nncf", "openvino", "openvino").__version__)


def _quantised(converted: Any, model: TowerModel, calibration: CalibrationPixels) -> Any:
    nncf = library("nncf", "openvino", "openvino")
    nncf.set_log_level(logging.ERROR)
    advanced = library("nncf.quantization.advanced_parameters", "openvino", "openvino")
    images = [pixels[None] for pixels in calibration.pixels]
    convolutional = isinstance(model, ConvolutionalModel)
    return nncf.quantize(
        converted,
        nncf.Dataset(images),
        model_type=None if convolutional else nncf.ModelType.TRANSFORMER,
        subset_size=len(images),
        ignored_scope=nncf.IgnoredScope(names=_head(converted, convolutional)),
        # Weights in 7 of the 8 bits: processors without VNNI add products in 16 bits, which would overflow, and
        # features must not depend on the processor.
        advanced_parameters=advanced.AdvancedQuantizationParameters(overflow_fix=advanced.OverflowFix.ENABLE),
    )


def _head(converted: Any, convolutional: bool) -> list[str]:
    """The nodes after the last weights, which stay in float32: 8 bits cannot give unit length.

    For a convolutional tower, everything after the last convolution.
    """
    weights = {"Convolution", "GroupConvolution"} | (set() if convolutional else {"MatMul"})
    names: set[str] = set()
    waiting = [result.get_node() for result in converted.outputs]
    while waiting:
        for value in waiting.pop().input_values():
            node = value.get_node()
            name = node.get_friendly_name()
            if name not in names and node.get_type_name() not in weights | {"Constant", "Parameter"}:
                names.add(name)
                waiting.append(node)
    return sorted(names)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the libraries' warnings and progress bars on standard output, and their telemetry.

    OpenVINO and nncf report their use through `openvino_telemetry`, unless it cannot be imported when they are first
    imported. If it was already imported, it is left alone.
    """
    hidden = "openvino_telemetry" not in sys.modules
    if hidden:
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        if hidden:
            sys.modules.pop("openvino_telemetry", None)
