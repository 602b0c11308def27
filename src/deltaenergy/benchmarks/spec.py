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

An image set takes `dataset` and `split` from the dataset catalogue, `classes` (`closed`, `open` = all but the closed
ones, `all`, or a list in splits.json), `without` (a list in splits.json), `domains` and `per_class`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Union

import yaml

from deltaenergy.core.classes import DEFAULT_TEMPLATE, check_templates
from deltaenergy.core.registry import Registry
from deltaenergy.errors import ArtifactError, InputError, did_you_mean
from deltaenergy.files.schema import Where, anything, list_of, mapping_of, optional, record, text, truth, whole

KINDS = ("id", "shifted")
# Benchmarks are a page long.
LARGEST_FILE = 4 << 20
HELD_OUT, OTHERS = "held-out", "others"


@dataclass(frozen=True)
class SetSpec:
    """Which images of a dataset make up a set. `kind`: a closed set is `id` (as trained) or `shifted` (covariate)."""

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


def _domains(value: Any, where: Where) -> None:
    """One name, or a list of names."""
    if not isinstance(value, str):
        list_of(text())(value, where)


_SET_FIELDS = {
    "dataset": text(),
    "split": optional(text()),
    "classes": text(),
    "without": optional(text()),
    "domains": _domains,
    "per_class": whole(1),
    "kind": text(among=KINDS),
    "own_classes": truth(),
}
_SET = optional(record(_SET_FIELDS, may_lack=_SET_FIELDS))
_CASE = record(
    {
        "name": text(),
        "dataset": text(),
        "classes": text(),
        "train": _SET,
        "closed": mapping_of(_SET),
        "open": mapping_of(_SET),
        "leave_one_domain_out": list_of(text()),
    },
    may_lack=("classes", "train", "open", "leave_one_domain_out"),
)
_OPTIONAL = {
    "about": text(blank=True),
    "tables": list_of(text()),
    "seeds": list_of(whole(0)),
    "shots": whole(1),
    "template": text(),
    "model": text(),
    "measures": text(among=("detection", "cost")),
    "recipe": mapping_of(anything()),
    "settings": mapping_of(mapping_of(anything())),
}
_SPEC = record({"title": text(), "methods": list_of(text()), "cases": list_of(_CASE), **_OPTIONAL}, may_lack=_OPTIONAL)


def parse_spec(content: str, name: str, where: str) -> BenchmarkSpec:
    """Check a benchmark's YAML text and build it; errors name the file and the entry."""
    try:
        raw = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError) as error:  # a number of a thousand digits, a thirteenth month
        raise InputError(f"{where} is no valid YAML: {error}") from error
    except RecursionError:
        raise InputError(f"{where} is nested too deeply to be a benchmark.") from None
    try:
        _SPEC(raw, Where(where))
    except ArtifactError as error:
        raise InputError(str(error)) from error
    seeds = tuple(raw.get("seeds", BenchmarkSpec.seeds))
    cases = [case for position, entry in enumerate(raw["cases"]) for case in _cases(entry, where, position, seeds)]
    twice = {case.name for case in cases if sum(other.name == case.name for other in cases) > 1}
    if twice:
        raise InputError(f"{where}: case names stand twice: {', '.join(sorted(twice))}.")
    template = raw.get("template", DEFAULT_TEMPLATE)
    check_templates(template, None)
    spec = BenchmarkSpec(
        name=name,
        title=raw["title"],
        about=" ".join(raw.get("about", "").split()),
        cases=tuple(cases),
        methods=tuple(raw["methods"]),
        tables=tuple(raw.get("tables", ())),
        seeds=seeds,
        shots=raw.get("shots", BenchmarkSpec.shots),
        template=template,
        # The tuners check the names in both.
        recipe=tuple(sorted(raw.get("recipe", {}).items())),
        settings=raw.get("settings", {}),
        model=raw.get("model", BenchmarkSpec.model),
        measures=raw.get("measures", BenchmarkSpec.measures),
    )
    return replace(spec, hash=_hash(spec))


def _cases(raw: dict[str, Any], file: str, position: int, seeds: tuple[int, ...]) -> list[Case]:
    """One case, or one per domain for a leave-one-domain-out entry."""
    where = f"{file}: cases[{position}]"
    dataset, classes = raw["dataset"], raw.get("classes", "all")
    if classes != "all":
        for seed in seeds:
            class_list(classes.replace("{seed}", str(seed)), f"{where}.classes")

    def sets(role: str) -> tuple[SetSpec, ...]:
        entries = raw.get(role, {}).items()
        return tuple(_image_set(str(name), entry, f"{where}.{role}.{name}", dataset, role) for name, entry in entries)

    train = raw.get("train")
    case = Case(
        name=raw["name"],
        group=raw["name"],
        dataset=dataset,
        classes=classes,
        train=None if train is None else _image_set("train", train, f"{where}.train", dataset, "closed"),
        closed=sets("closed"),
        open=sets("open"),
    )
    domains = raw.get("leave_one_domain_out", [])
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


def _image_set(name: str, raw: dict[str, Any] | None, where: str, dataset: str, role: str) -> SetSpec:
    fields = raw or {}
    own = fields.get("dataset", dataset)
    # An open set of another dataset is all of it; one of the same dataset is what the classifier was not told.
    classes = fields.get("classes", "all" if role == "open" and own != dataset else role)
    if classes not in {"all", "closed", "open"}:
        class_list(classes, f"{where}.classes")
    without = fields.get("without")
    if without is not None:
        class_list(without, f"{where}.without")
    domains = fields.get("domains", [])
    return SetSpec(
        name=name,
        dataset=own,
        split=fields.get("split"),
        classes=classes,
        without=without,
        domains=(domains,) if isinstance(domains, str) else tuple(domains),
        per_class=fields.get("per_class"),
        kind=fields.get("kind", "id" if own == dataset else "shifted"),
        own_classes=fields.get("own_classes", False),
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
