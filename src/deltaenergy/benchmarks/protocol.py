"""The protocols of benchmarks: how methods are trained, chosen and tested, the same for every method of a run.

    standard   the default: every closed image counts, and nothing is fitted or chosen on a test image
    paper      what the ΔEnergy paper states; otherwise a choice without test images, named in the file
    croft      what the code of CRoFT does, on which the paper builds; `croft(as_released=true)` repeats its bug

A protocol is a file, `protocols/NAME.yaml`: rules, and defaults for benchmarks. A benchmark's file may change more
(`protocols:`). `croft` extends `paper`.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from deltaenergy.benchmarks.spec import PROTOCOL_NAMES, SECTION, BenchmarkSpec, changed, merged, read_yaml
from deltaenergy.errors import InputError, did_you_mean
from deltaenergy.files.schema import record, text, truth
from deltaenergy.models.base import require_towers
from deltaenergy.models.preprocessing import Preprocessing
from deltaenergy.tuning.views import random_view

if TYPE_CHECKING:
    from deltaenergy.benchmarks.rows import BenchmarkRow
    from deltaenergy.models.base import Model, TowerModel

STANDARD = "standard"
AS_RELEASED = "(as_released=true)"
PROTOCOLS = (*PROTOCOL_NAMES, f"croft{AS_RELEASED}")


@dataclass(frozen=True)
class Rules:
    """Rules of a protocol that no benchmark changes.

    Attributes:
        correct_only: only closed images that are classified correctly count for detection.
        open_in_train_view: open images pass through the random training view.
        search: each tuning method's grid is searched on the validation images.
        best_epoch: the epoch that is best on the validation images is kept, not the last.
    """

    correct_only: bool = False
    open_in_train_view: bool = False
    search: bool = False
    best_epoch: bool = False


@dataclass(frozen=True)
class Protocol:
    """A protocol: `label` marks results, `names` are the sections of a benchmark that apply, in order."""

    label: str
    about: str
    rules: Rules
    names: tuple[str, ...] = ()
    # Defaults of benchmarks.
    defaults: Mapping[str, Any] = field(default_factory=dict, repr=False)
    # Whether bugs of the released code are repeated.
    as_released: bool = False

    def applied_to(self, spec: BenchmarkSpec) -> BenchmarkSpec:
        """The benchmark under this protocol; its own file overrides the protocol's defaults."""
        own = spec.data.get("protocols", {})
        names = [name for name in self.names or (STANDARD,) if name in own]
        if not names and not self.defaults:
            return spec
        return changed(spec, {f"{spec.name}: protocols.{name}": own[name] for name in names}, self.defaults)

    def departures(self, spec: BenchmarkSpec, rows: Sequence[BenchmarkRow] = ()) -> list[str]:
        """Sentences on what favours a method: oracles, which a user cannot have, come first."""
        chooses = self.rules.search or self.rules.best_epoch
        batched = [row.label for row in rows if row.method is not None and row.method.batch_dependent]
        found = {
            "Oracle: epochs and hyper-parameters are chosen on test images.": chooses
            and spec.validation.source == "test",
            "Oracle: known test images that are misclassified do not count for detection.": self.rules.correct_only,
            f"Oracle: {', '.join(batched)} learns from the whole batch of test images.": bool(batched),
            "Open images pass through the random training view and known images do not: they differ in more than "
            "their content.": self.rules.open_in_train_view,
            "Training images of several domains are drawn without regard to their class, due to a bug in the released "
            "code.": self.as_released,
        }
        return [text for text, holds in found.items() if holds]


_RULES = {one.name: truth() for one in fields(Rules)}
_FILE = record(
    {
        "about": text(),
        "based_on": text(among=PROTOCOL_NAMES),
        "rules": record(_RULES, may_lack=_RULES),
        "defaults": SECTION,
    },
    may_lack=("based_on", "rules", "defaults"),
)


def get_protocol(name: str) -> Protocol:
    """The protocol of that name."""
    label = name.replace(" ", "").lower()
    if label not in PROTOCOLS:
        raise InputError(f"Unknown protocol {name!r}.{did_you_mean(name, PROTOCOLS)}")
    short = label.removesuffix(AS_RELEASED)
    data = _load(short)
    names = [*([data["based_on"]] if "based_on" in data else []), *([short] if short != STANDARD else [])]
    return Protocol(
        label,
        " ".join(data["about"].split()),
        Rules(**data.get("rules", {})),
        tuple(names),
        functools.reduce(merged, (_load(one).get("defaults", {}) for one in names), {}),
        as_released=label != short,
    )


def _load(name: str) -> dict[str, Any]:
    file = resources.files("deltaenergy.benchmarks") / "protocols" / f"{name}.yaml"
    return read_yaml(file.read_text(encoding="utf-8"), f"protocols/{name}.yaml", _FILE)


class TrainView(Preprocessing):
    """CLIP tuning's random view: a crop of 8–100% of the area and 3:4 to 4:3 in shape, resized; half are mirrored.

    The randomness comes from the image's bytes, so an image always gets the same view.
    """

    def frame(self, image: Image.Image) -> Image.Image:
        """A random crop, resized to the model's side."""
        image = image.convert("RGB")
        digest = hashlib.blake2b(image.tobytes(), digest_size=8).digest()
        rng = np.random.default_rng(int.from_bytes(digest, "little"))
        return random_view(image, self, rng)


def in_train_view(model: Model) -> TowerModel:
    """The same model behind the random training view, with its own fingerprint."""
    towers = require_towers(model, "the training view")
    return towers.derived("train-view", preprocessing=TrainView(**vars(towers.preprocessing)))
