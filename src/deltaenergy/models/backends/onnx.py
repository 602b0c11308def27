"""ONNX Runtime on the CPU, in float32. The tower with patches is exported on demand."""

from __future__ import annotations

import contextlib
import io
import logging
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from deltaenergy.models.backends.base import TowerEngine, exported_program, library
from deltaenergy.models.base import TowerModel

FILE, INPUT = "tower.onnx", "pixels"


class OnnxEngine(TowerEngine):
    """Sessions for the tower with and without patches.

    Args:
        session_of: whether with patches -> a session; called once for each.
    """

    def __init__(self, session_of: Callable[[bool], Any]) -> None:
        self._session_of = session_of
        self._lock = threading.Lock()
        self._sessions = {False: session_of(False)}

    def run(self, pixels: torch.Tensor, *, patches: bool) -> tuple[torch.Tensor, ...]:
        array = pixels.detach().to("cpu", torch.float32).contiguous().numpy()
        with self._lock:
            if patches not in self._sessions:
                self._sessions[patches] = self._session_of(patches)
        found = self._sessions[patches].run(None, {INPUT: array})
        return tuple(torch.from_numpy(one).to(pixels.device) for one in found)


def open_session(folder: Path) -> Any:
    """A session with as many threads as torch uses."""
    runtime = library("onnxruntime", "onnx", "onnx")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    return runtime.InferenceSession(str(folder / FILE), options, providers=["CPUExecutionProvider"])


def write_onnx(model: TowerModel, folder: Path, *, patches: bool) -> None:
    """Export the image tower to `folder`."""
    for needed in ("onnx", "onnxscript"):
        library(needed, "onnx", "onnx")
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            # Weights next to the graph, because a file of this format is limited to two gigabytes.
            torch.onnx.export(
                exported_program(model, patches=patches),
                f=str(folder / FILE),
                input_names=[INPUT],
                dynamo=True,
                verbose=False,
                external_data=True,
            )
    finally:
        log.setLevel(level)
