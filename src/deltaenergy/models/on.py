"""Where a model runs, in one text: `"cuda:1,bf16,batch=256"`, `"openvino,int8"`, `"cpu"`.

Words in any order, at most one of each kind: a device, a backend, a precision, `batch=N`. `load_model` chooses the
rest. This module imports nothing heavy: the command line completes its words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltaenergy.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from deltaenergy.models.base import Model, TowerModel

DEVICES = ("auto", "cpu", "cuda", "mps", "xpu")
# The precisions of each backend; the first is the default on a CPU.
PRECISIONS = {
    "torch": ("fp32", "int8", "fp16", "bf16"),
    "openvino": ("fp32", "int8"),
    "onnx": ("fp32",),
    "compile": ("fp32", "fp16", "bf16"),
}
# The known words, by kind.
WORDS = {
    **dict.fromkeys(DEVICES, "device"),
    **dict.fromkeys(PRECISIONS, "backend"),
    **dict.fromkeys((one for known in PRECISIONS.values() for one in known), "precision"),
    "batch=N": "batch",
}
_NUMBERED = re.compile(r"(?P<device>[a-z]+):[0-9]{1,3}")
BATCH_SIZE, LARGEST_BATCH = 32, 2**31 - 1


@dataclass(frozen=True)
class On:
    """Device, backend and precision of a model, and images per batch of its image encoder."""

    device: str = "auto"
    backend: str | None = None
    precision: str = "auto"
    batch: int | None = None

    @classmethod
    def of(cls, words: str | On) -> On:
        """Parse `words`; an error names an unknown word and the nearest known one."""
        if isinstance(words, On):
            return words
        if not isinstance(words, str):
            raise InputError(f"`on` must be a string such as 'cpu' or 'cuda,bf16', got {words!r}.")
        found: dict[str, str | int] = {}
        for word in words.split(","):
            kind, value = _read(word.strip(), words)
            if kind in found:
                raise InputError(f"`on` {words!r} has two words of one kind: {found[kind]} and {value}. Remove one.")
            found[kind] = value
        on = cls(**found)  # type: ignore[arg-type]
        on.check()
        return on

    def check(self, calibration_images: Any = None) -> None:
        """Raise `InputError` for a backend and a precision that cannot be combined."""
        if (self.backend, self.precision, calibration_images) != (None, "auto", None):
            from deltaenergy.models.backends import check_backend

            check_backend(self.backend or "torch", self.precision, calibration_images)

    @property
    def batch_size(self) -> int:
        """Images per batch, by default 32."""
        return self.batch or BATCH_SIZE

    @property
    def names_a_place(self) -> bool:
        """Whether it sets more than a batch size, which a loaded model cannot follow."""
        return (self.device, self.backend, self.precision) != ("auto", None, "auto")

    def load_model(self, name: str | Path, calibration_images: Any = None) -> TowerModel:
        """`load_model` with these settings."""
        from deltaenergy.models.loading.load import load_model

        return load_model(
            name,
            device=self.device,
            backend=self.backend or "torch",
            precision=self.precision,
            calibration_images=calibration_images,
        )

    def check_made_with(self, model: Model, what: str) -> None:
        """Raise `InputError` if a saved detector was calibrated on another backend, or in another precision."""
        backend, precision = getattr(model, "backend", "torch"), getattr(model, "precision", "fp32")
        if (self.backend or backend) != backend or self.precision not in ("auto", precision):
            raise InputError(
                f"{what} was calibrated with {backend} in {precision}; its threshold is valid only there. Remove the "
                "backend and the precision from `on`, or calibrate again with them."
            )


def _read(word: str, words: str) -> tuple[str, str | int]:
    """The kind of a word, and its value."""
    name, equals, number = word.partition("=")
    if equals and name == "batch":
        if not (number.isascii() and number.isdigit()) or not 1 <= int(number[:12]) <= LARGEST_BATCH:
            raise InputError(f"`on` {words!r}: batch must be a whole number from 1 to {LARGEST_BATCH:,}.")
        return "batch", int(number)
    numbered = _NUMBERED.fullmatch(word)
    if word in WORDS or (numbered is not None and numbered["device"] in DEVICES[2:]):
        return WORDS.get(word, "device"), word
    raise InputError(f"`on` {words!r} has an unknown word {word[:60]!r}.{did_you_mean(word[:60], WORDS)}")
