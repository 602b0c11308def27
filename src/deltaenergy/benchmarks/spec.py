"""Benchmarks as data: `specs/NAME.yaml` says which images, which classes, which seeds; `splits.json` holds class lists.

A benchmark is a list of cases. A case is one classifier (a class list), where its few training images come from, the
closed sets it must classify and the open sets it must reject. Fields of the YAML files:

    title, about, tables, seeds, shots, template, methods, recipe (of tuning: {epochs: 10}), model
    settings (of tuners, where --methods does not say otherwise: {ebm: {weight: 2}})
    cases:
      - name: pacs
        dataset: pacs                     # whose class names the classifier gets
        classes: all                      # all | the name of a list in splits.json, {seed} filled in
        leave_one_domain_out: [a, b]      # one case per domain: train on the others, test on it
        train:  {split: train}
        closed: {target: {kind: shifted, domains: held-out}}
        open:   {dtd: {dataset: dtd, per_class: 100}}

An image set takes `dataset` and `split` from the data-set catalogue, `classes` (`closed`, `open` = all but the closed
ones, `all`, or a list in splits.json), `without` (a list in splits.json), `domains` and `per_class`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Union

import yaml

from deltaenergy.core.classes import DEFAULT_TEMPLATE, check_templates
from deltaenergy.core.registry import Registry
from deltaenergy.errors import InputError, did_you_mean

KINDS = ("id", "shifted")
# Benchmarks are a page long.
LARGEST_FILE = 4 << 20
HELD_OUT, OTHERS = "held-out", "others"


@dataclass(frozen=True)
class SetSpec:
    """Which images of a data set make up a set. `kind`: a closed set is `id` (as trained) or `shifted` (covariate)."""

    name: str
    dataset: str
    split: str | None = None
    classes: str = "all"
    without: str | None = None
    domains: tuple[str, ...] = ()
    per_class: int | None = None
    kind: str = "id"
    # Classify into this data set's own class names rather than the case's (concept shift).
    own_classes: bool = False


@dataclass(frozen=True)
class Case:
    """One classifier and what it is tested on. Cases of one `group` are averaged in tables."""

    name: str
    group: str
    dataset: str
    classes: str
    train: SetSpec | None
    closed: tuple[SetSpec, ...]
    open: tuple[SetSpec, ...]

    @property
    def varies_with_seed(self) -> bool:
        """Whether the class list itself depends on the seed."""
        return "{seed}" in self.classes

    def image_sets(self) -> tuple[SetSpec, ...]:
        """Every image set of the case."""
        return (*([self.train] if self.train else []), *self.closed, *self.open)


@dataclass(frozen=True)
class BenchmarkSpec:
    """A whole benchmark. `hash` identifies its text together with the class lists it refers to."""

    name: str
    title: str
    about: str
    cases: tuple[Case, ...]
    methods: tuple[str, ...]
    tables: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (1, 2, 3)
    shots: int = 16
    template: str = DEFAULT_TEMPLATE
    measures: str = "detection"
    recipe: tuple[tuple[str, Any], ...] = ()
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    model: str = "lite"
    hash: str = field(default="", compare=False)


# Where a benchmark comes from: a YAML file, or the benchmark itself.
Benchmark = Union[str, "os.PathLike[str]", BenchmarkSpec]


def _check(name: str, entry: Benchmark) -> None:
    if not isinstance(entry, (str, os.PathLike, BenchmarkSpec)):
        raise TypeError(f"benchmark {name!r} must be the path of a YAML file or a BenchmarkSpec, got {entry!r}")


# Another package adds a benchmark by an entry point that names a YAML file's path, or a BenchmarkSpec.
BENCHMARKS: Registry[Benchmark] = Registry("benchmark", group="deltaenergy.benchmarks", check=_check)
for _file in Path(__file__).with_name("specs").glob("*.yaml"):
    BENCHMARKS.add(_file.stem, _file)


def benchmark_names() -> list[str]:
    """The benchmarks of this package, and of others that are installed."""
    return BENCHMARKS.names()


def load_spec(name_or_file: str) -> BenchmarkSpec:
    """A benchmark by name, or one's own from a YAML file."""
    path = Path(name_or_file)
    if path.suffix in {".yaml", ".yml"}:
        return parse_spec(_read(path), path.stem, where=str(path))
    if name_or_file not in BENCHMARKS:
        hint = did_you_mean(name_or_file, benchmark_names())
        raise InputError(f"Unknown benchmark {name_or_file!r}.{hint} Or give the path of a .yaml file.")
    entry = BENCHMARKS.get(name_or_file)
    if isinstance(entry, BenchmarkSpec):
        return entry
    return parse_spec(Path(entry).read_text(encoding="utf-8"), name_or_file, where=f"specs/{Path(entry).name}")


def _read(path: Path) -> str:
    """A user's YAML file as text."""
    if not path.is_file():
        raise InputError(f"The benchmark file {path} does not exist.")
    if path.stat().st_size > LARGEST_FILE:
        raise InputError(f"{path} is larger than {LARGEST_FILE >> 20} MiB, which is no benchmark.")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The benchmark file {path} cannot be read as UTF-8 text: {error}") from error


@functools.cache
def splits() -> dict[str, Any]:
    """The class lists of the package, by name; nested names are joined with a slash."""
    loaded: dict[str, Any] = json.loads(
        (resources.files("deltaenergy.benchmarks") / "splits.json").read_text(encoding="utf-8")
    )
    return loaded


def class_list(name: str, where: str = "classes") -> list[str]:
    """The list `name` of splits.json, such as `hard-splits/split1/id`."""
    node: Any = splits()
    for part in name.split("/"):
        if not isinstance(node, dict) or part not in node:
            known = node if isinstance(node, dict) else ()
            raise InputError(f"{where}: splits.json holds no list {name!r}.{did_you_mean(part, known)}")
        node = node[part]
    if not isinstance(node, list):
        raise InputError(f"{where}: {name!r} is no list but a group.{did_you_mean('', node)}")
    return node


def parse_spec(text: str, name: str, where: str) -> BenchmarkSpec:
    """Check a benchmark's YAML text and build it; errors name the file and the field."""
    try:
        raw = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:  # a number of a thousand digits, a thirteenth month
        raise InputError(f"{where} is no valid YAML: {error}") from error
    except RecursionError:
        raise InputError(f"{where} is nested too deeply to be a benchmark.") from None
    known = {
        "title",
        "about",
        "tables",
        "seeds",
        "shots",
        "template",
        "methods",
        "model",
        "measures",
        "recipe",
        "settings",
        "cases",
    }
    fields = _mapping(raw, where, known, required={"title", "methods", "cases"})
    seeds = tuple(_list(fields.get("seeds", [1, 2, 3]), f"{where}: seeds", int))
    cases: list[Case] = []
    for position, entry in enumerate(_list(fields["cases"], f"{where}: cases", dict)):
        cases += _cases(entry, f"{where}: cases[{position}]", seeds)
    twice = {case.name for case in cases if sum(other.name == case.name for other in cases) > 1}
    if twice:
        raise InputError(f"{where}: case names stand twice: {', '.join(sorted(twice))}.")
    template = str(fields.get("template", DEFAULT_TEMPLATE))
    check_templates(template, None)
    spec = BenchmarkSpec(
        name=name,
        title=str(fields["title"]),
        about=" ".join(str(fields.get("about", "")).split()),
        cases=tuple(cases),
        methods=tuple(_list(fields["methods"], f"{where}: methods", str)),
        tables=tuple(_list(fields.get("tables", []), f"{where}: tables", str)),
        seeds=seeds,
        shots=_positive(fields.get("shots", 16), f"{where}: shots"),
        template=template,
        recipe=tuple(sorted(_recipe(fields.get("recipe", {}), where).items())),
        settings=_settings(fields.get("settings", {}), where),
        model=str(fields.get("model", "lite")),
        measures=_choice(fields.get("measures", "detection"), ("detection", "cost"), f"{where}: measures"),
    )
    return replace(spec, hash=_hash(spec))


def _cases(raw: Any, where: str, seeds: tuple[int, ...]) -> list[Case]:
    """One case, or one per domain for a leave-one-domain-out entry."""
    known = {"name", "dataset", "classes", "train", "closed", "open", "leave_one_domain_out"}
    fields = _mapping(raw, where, known, required={"name", "dataset", "closed"})
    dataset, classes = str(fields["dataset"]), str(fields.get("classes", "all"))
    if classes != "all":
        for seed in seeds:
            class_list(classes.replace("{seed}", str(seed)), f"{where}: classes")
    train = fields.get("train")
    case = Case(
        name=str(fields["name"]),
        group=str(fields["name"]),
        dataset=dataset,
        classes=classes,
        train=None if train is None else _image_set("train", train, f"{where}: train", dataset, "closed"),
        closed=_image_sets(fields["closed"], f"{where}: closed", dataset, "closed"),
        open=_image_sets(fields.get("open", {}), f"{where}: open", dataset, "open"),
    )
    domains = _list(fields.get("leave_one_domain_out", []), f"{where}: leave_one_domain_out", str)
    return [_hold_out(case, domain, domains) for domain in domains] if domains else [case]


def _hold_out(case: Case, domain: str, domains: list[str]) -> Case:
    """The case in which `domain` is tested and the others are trained on."""
    others = tuple(other for other in domains if other != domain)
    meaning: dict[tuple[str, ...], tuple[str, ...]] = {(HELD_OUT,): (domain,), (OTHERS,): others}

    def settle(images: SetSpec) -> SetSpec:
        return replace(images, domains=meaning.get(images.domains, images.domains))

    return replace(
        case,
        name=f"{case.name}/{domain}",
        train=settle(case.train) if case.train else None,
        closed=tuple(map(settle, case.closed)),
        open=tuple(map(settle, case.open)),
    )


def _image_sets(raw: Any, where: str, dataset: str, role: str) -> tuple[SetSpec, ...]:
    if not isinstance(raw, Mapping):
        raise InputError(f"{where} must map names to image sets, not {_shown(raw)}.")
    return tuple(_image_set(str(name), entry, f"{where}.{name}", dataset, role) for name, entry in raw.items())


def _image_set(name: str, raw: Any, where: str, dataset: str, role: str) -> SetSpec:
    known = {"dataset", "split", "classes", "without", "domains", "per_class", "kind", "own_classes"}
    fields = _mapping(raw or {}, where, known)
    own = str(fields.get("dataset", dataset))
    # An open set of another data set is all of it; one of the same data set is what the classifier was not told.
    default = "all" if role == "open" and own != dataset else role
    classes = str(fields.get("classes", default))
    if classes not in {"all", "closed", "open"}:
        class_list(classes, f"{where}: classes")
    without = fields.get("without")
    if without is not None:
        class_list(str(without), f"{where}: without")
    domains = fields.get("domains", [])
    return SetSpec(
        name=name,
        dataset=own,
        split=None if fields.get("split") is None else str(fields["split"]),
        classes=classes,
        without=None if without is None else str(without),
        domains=(domains,) if isinstance(domains, str) else tuple(_list(domains, f"{where}: domains", str)),
        per_class=None if "per_class" not in fields else _positive(fields["per_class"], f"{where}: per_class"),
        kind=_choice(fields.get("kind", "id" if own == dataset else "shifted"), KINDS, f"{where}: kind"),
        own_classes=bool(fields.get("own_classes", False)),
    )


def _hash(spec: BenchmarkSpec) -> str:
    """Hash of everything that decides which images meet which classes; titles and default methods do not."""
    lists = {case.classes: "" for case in spec.cases}
    for case in spec.cases:
        lists.update({name: "" for s in case.image_sets() for name in (s.classes, s.without) if name})
    resolved: dict[str, Any] = {}
    for name in sorted(lists):
        if name not in {"all", "closed", "open"}:
            for seed in spec.seeds if "{seed}" in name else (0,):
                full = name.replace("{seed}", str(seed))
                resolved[full] = class_list(full)
    text = repr((spec.cases, spec.seeds, spec.shots, spec.template, spec.measures, spec.recipe, resolved))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _recipe(raw: Any, where: str) -> dict[str, Any]:
    """Fields of the training recipe that the benchmark changes; the tuner checks their names."""
    if not isinstance(raw, Mapping):
        raise InputError(f"{where}: recipe must hold fields such as epochs, not {_shown(raw)}.")
    return {str(name): value for name, value in raw.items()}


def _settings(raw: Any, where: str) -> dict[str, dict[str, Any]]:
    """Parameters of tuners that the benchmark sets; the tuners check them."""
    if not isinstance(raw, Mapping) or not all(isinstance(values, Mapping) for values in raw.values()):
        raise InputError(
            f"{where}: settings must hold parameters by tuner, as in {{ebm: {{weight: 2}}}}, not {_shown(raw)}."
        )
    return {str(name): {str(key): value for key, value in values.items()} for name, values in raw.items()}


def _mapping(raw: Any, where: str, known: set[str], required: set[str] = frozenset()) -> dict[str, Any]:  # type: ignore[assignment]
    if not isinstance(raw, Mapping):
        raise InputError(f"{where} must hold fields, not {_shown(raw)}.")
    for key in raw:
        if key not in known:
            raise InputError(f"{where}: unknown field {str(key)!r}.{did_you_mean(str(key), known)}")
    missing = sorted(required - set(raw))
    if missing:
        raise InputError(f"{where}: the field {missing[0]!r} is missing.")
    return dict(raw)


def _list(raw: Any, where: str, kind: type) -> list[Any]:
    if not isinstance(raw, list) or not all(isinstance(item, kind) for item in raw):
        raise InputError(f"{where} must be a list of {kind.__name__} values, not {_shown(raw)}.")
    return raw


def _positive(raw: Any, where: str) -> int:
    if not isinstance(raw, int) or isinstance(raw, bool) or raw < 1:
        raise InputError(f"{where} must be a whole number of at least 1, not {_shown(raw)}.")
    return raw


def _shown(raw: Any) -> str:
    """A value of a file in a message: cut, since a few lines of YAML can stand for a billion entries."""
    return reprlib.repr(raw)


def _choice(raw: Any, known: tuple[str, ...], where: str) -> str:
    if raw not in known:
        raise InputError(f"{where}: unknown value {_shown(raw)}.{did_you_mean(str(raw), known)}")
    return str(raw)
