"""Benchmarks as data: `specs/NAME.yaml` says which images, which classes, which seeds; `splits.json` has class lists.

A benchmark is a list of cases. A case is one classifier (a class list), where its few training images come from, the
closed sets it must classify and the open sets it must reject. Fields of the YAML files:

    title, about, tables, seeds, shots, methods, recipe (of tuning: {epochs: 10}), model, batch_size
    template    of zero-shot classifiers, or `dataset`: each dataset's own
    validation  {from: train | val | test, per_class: 4}: images that epochs and hyper-parameters are chosen on
    tuning      by tuning method or term: {ebm: {parameters: {weight: 2}, grid: {p: [0.4, 0.5]}, recipe: {lr: 0.1}}}
    scores      by score: {neglabel: {parameters: {groups: 10}, templates: ["the nice {}"]}}
    protocols   what differs under a protocol: {paper: {tuning: …, cases: {pacs: {tuning: …}}}}
    cases:
      - name: pacs
        dataset: pacs                     # whose class names the classifier gets
        classes: all                      # all | the name of a list in splits.json, {seed} filled in
        leave_one_domain_out: [a, b]      # one case per domain: train on the others, test on it
        train:  {split: train}
        closed: {target: {kind: shifted, domains: held-out}}
        open:   {dtd: {dataset: dtd, per_class: 100}}
        tuning, scores                    # as above, for this case alone

`tuning` and `scores` are defaults for rows. A grid is what a search tries; a list of grids joins them. A parameter that
is set is not searched.

An image set takes `dataset` and `split` from the dataset catalogue, `classes` (`closed`, `open` = all but the closed
ones, `all`, or a list in splits.json), `without` (a list in splits.json), `domains`, `per_class` and `splits`: at most
this many images of each split and class, {train: 16, test: null}. A training set also takes `draw`: how shots are drawn
(see `sets.draw_shots`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Union

import yaml

from deltaenergy.core.classes import DEFAULT_TEMPLATE, check_templates
from deltaenergy.core.registry import Registry
from deltaenergy.errors import ArtifactError, InputError, did_you_mean
from deltaenergy.files.schema import Check, Where, anything, list_of, mapping_of, optional, record, text, truth, whole

KINDS = ("id", "shifted")
DRAWS = ("spread", "balanced", "pooled")
PROTOCOL_NAMES = ("standard", "paper", "croft")
# Benchmark files are about a page long.
LARGEST_FILE = 4 << 20
HELD_OUT, OTHERS = "held-out", "others"
# As a template: each dataset's own.
OF_DATASET = "dataset"


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
    # Classify into this dataset's own class names, not the case's (concept shift).
    own_classes: bool = False
    # Not part of the specification's hash, which is older: the hash of the images covers these.
    splits: Mapping[str, int | None] = field(default_factory=dict, repr=False)
    draw: str = field(default="spread", repr=False)


@dataclass(frozen=True)
class PartSettings:
    """A table's defaults for one tuning method, loss term or score.

    Attributes:
        parameters: by name; a search does not change them.
        grids: what a search tries, every combination of each; None is the method's own grid.
        recipe: changes to the training.
        templates: prompts of the zero-shot classifier that a score is tested with.
    """

    parameters: Mapping[str, Any] = field(default_factory=dict)
    grids: tuple[Mapping[str, list[Any]], ...] | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    templates: tuple[str, ...] = ()


@dataclass(frozen=True)
class RowSettings:
    """A table's defaults for its rows, by tuning method or term, and by score."""

    tuning: Mapping[str, PartSettings] = field(default_factory=dict)
    scores: Mapping[str, PartSettings] = field(default_factory=dict)


@dataclass(frozen=True)
class ValidationRule:
    """Which images epochs and hyper-parameters are chosen on: up to `per_class` of each class.

    `source` is train: further training images; val: the dataset's validation split, as far as it is not tested, or
    further training images; test: images that are also tested.
    """

    source: str = "train"
    per_class: int = 4


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
    # The settings of the benchmark with those of the case on top; rows have them in their identity.
    settings: RowSettings = field(default_factory=RowSettings, repr=False)

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
    settings: RowSettings = RowSettings()
    validation: ValidationRule = ValidationRule()
    batch_size: int = 32
    model: str = "lite"
    hash: str = field(default="", compare=False)
    # The YAML data it was built from, which a protocol changes; empty for one that was made in Python.
    data: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


# The source of a benchmark: a YAML file, or the benchmark itself.
Benchmark = Union[str, "os.PathLike[str]", BenchmarkSpec]


def _check(name: str, entry: Benchmark) -> None:
    if not isinstance(entry, (str, os.PathLike, BenchmarkSpec)):
        raise TypeError(f"benchmark {name!r} must be the path of a YAML file or a BenchmarkSpec, got {entry!r}")


# Another package adds a benchmark by an entry point that names a YAML file's path, or a BenchmarkSpec.
BENCHMARKS: Registry[Benchmark] = Registry("benchmark", group="deltaenergy.benchmarks", check=_check)
for _file in Path(__file__).with_name("specs").glob("*.yaml"):
    BENCHMARKS.add(_file.stem, _file)


def benchmark_names() -> list[str]:
    """The benchmarks of all installed packages."""
    return BENCHMARKS.names()


def load_spec(name_or_file: str) -> BenchmarkSpec:
    """A benchmark by name or from a YAML file."""
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
        raise InputError(f"{path} is larger than {LARGEST_FILE >> 20} MiB; is it a benchmark?")
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
            raise InputError(f"{where}: splits.json has no list {name!r}.{did_you_mean(part, known)}")
        node = node[part]
    if not isinstance(node, list):
        raise InputError(f"{where}: {name!r} is a group, not a list.{did_you_mean('', node)}")
    return node


def _either(single: type, check: Check, many: Check) -> Check:
    """Apply `check` to a `single`, or `many`."""
    return lambda value, where: (check if isinstance(value, single) else many)(value, where)


_SET_FIELDS = {
    "dataset": text(),
    "split": optional(text()),
    "splits": mapping_of(optional(whole(1))),
    "classes": text(),
    "without": optional(text()),
    "domains": _either(str, text(), list_of(text())),
    "per_class": whole(1),
    "kind": text(among=KINDS),
    "own_classes": truth(),
    "draw": text(among=DRAWS),
}
_SET = optional(record(_SET_FIELDS, may_lack=_SET_FIELDS))
_GRID = mapping_of(list_of(anything(), least=1))
_TUNING = {
    "parameters": mapping_of(anything()),
    "grid": _either(dict, _GRID, list_of(_GRID, least=1)),
    "recipe": mapping_of(anything()),
}
_SCORES = {"parameters": mapping_of(anything()), "templates": list_of(text(), least=1)}
_SETTINGS = {
    "tuning": mapping_of(record(_TUNING, may_lack=_TUNING)),
    "scores": mapping_of(record(_SCORES, may_lack=_SCORES)),
}
_CASE_CHANGES = {
    "classes": text(),
    "train": _SET,
    "closed": mapping_of(_SET),
    "open": mapping_of(_SET),
    "leave_one_domain_out": list_of(text()),
    **_SETTINGS,
}
_CASE = record(
    {"name": text(), "dataset": text(), **_CASE_CHANGES}, may_lack=[name for name in _CASE_CHANGES if name != "closed"]
)
_CHANGES = {
    "methods": list_of(text()),
    "shots": whole(1),
    "template": text(),
    "recipe": mapping_of(anything()),
    "validation": record({"from": text(among=("train", "val", "test")), "per_class": whole(1)}),
    "batch_size": whole(1),
    **_SETTINGS,
}
# What a protocol may change of a benchmark: of its cases by their names.
SECTION = record(
    {**_CHANGES, "cases": mapping_of(record(_CASE_CHANGES, may_lack=_CASE_CHANGES))}, may_lack=(*_CHANGES, "cases")
)
_OPTIONAL = {
    "about": text(blank=True),
    "tables": list_of(text()),
    "seeds": list_of(whole(0)),
    "model": text(),
    "measures": text(among=("detection", "cost")),
    "protocols": record(dict.fromkeys(PROTOCOL_NAMES, SECTION), may_lack=PROTOCOL_NAMES),
    **{name: check for name, check in _CHANGES.items() if name != "methods"},
}
_SPEC = record({"title": text(), "methods": list_of(text()), "cases": list_of(_CASE), **_OPTIONAL}, may_lack=_OPTIONAL)


def read_yaml(content: str, where: str, check: Check) -> dict[str, Any]:
    """The data of a YAML text that `check` accepts; errors name the file and the entry."""
    try:
        raw: dict[str, Any] = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError) as error:  # such as a number of a thousand digits, or month 13
        raise InputError(f"{where} is not valid YAML: {error}") from error
    except RecursionError:
        raise InputError(f"{where} is nested too deeply to be a benchmark.") from None
    try:
        check(raw, Where(where))
    except ArtifactError as error:
        raise InputError(str(error)) from error
    return raw


def parse_spec(content: str, name: str, where: str) -> BenchmarkSpec:
    """Check a benchmark's YAML text and build it."""
    spec = _build(read_yaml(content, where, _SPEC), name, where)
    for protocol, section in spec.data.get("protocols", {}).items():
        changed(spec, {f"{where}: protocols.{protocol}": section})  # errors are raised now
    return spec


def changed(
    spec: BenchmarkSpec, sections: Mapping[str, Mapping[str, Any]], defaults: Mapping[str, Any] | None = None
) -> BenchmarkSpec:
    """The benchmark with the sections of protocols on top, in order, and `defaults` below.

    If there are tables of the paper, the rows to run are the defaults'. A benchmark made in Python has no data to
    change.
    """
    if not spec.data:
        return spec
    data = merged(defaults or {}, spec.data)
    if spec.tables and defaults and "methods" in defaults:
        data["methods"] = defaults["methods"]
    where = spec.name
    for where, section in sections.items():
        cases = {case["name"]: case for case in data["cases"]}
        for name, change in section.get("cases", {}).items():
            if name not in cases:
                raise InputError(f"{where}: there is no case {name!r}.{did_you_mean(name, cases)}")
            cases[name] = merged(cases[name], change)
        data = {**merged(data, section), "cases": list(cases.values())}
    return _build(data, spec.name, where)


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `change` on top: mappings within are merged, anything else is replaced."""
    return {
        **base,
        **{
            key: merged(base[key], value) if isinstance(base.get(key), dict) and isinstance(value, dict) else value
            for key, value in change.items()
        },
    }


def _build(data: Mapping[str, Any], name: str, where: str) -> BenchmarkSpec:
    seeds = tuple(data.get("seeds", BenchmarkSpec.seeds))
    shared = {key: data.get(key, {}) for key in _SETTINGS}
    validation = data.get("validation")
    cases = [
        case
        for position, entry in enumerate(data["cases"])
        for case in _cases(entry, shared, f"{where}: cases[{position}]", seeds)
    ]
    twice = {case.name for case in cases if sum(other.name == case.name for other in cases) > 1}
    if twice:
        raise InputError(f"{where}: duplicate case names: {', '.join(sorted(twice))}.")
    plain = ("title", "measures", "shots", "template", "batch_size", "model")
    spec = BenchmarkSpec(
        name=name,
        about=" ".join(data.get("about", "").split()),
        cases=tuple(cases),
        methods=tuple(data["methods"]),
        tables=tuple(data.get("tables", ())),
        seeds=seeds,
        # Rows check the names in these two.
        recipe=tuple(sorted(data.get("recipe", {}).items())),
        settings=_settings(shared),
        validation=ValidationRule(validation["from"], validation["per_class"]) if validation else ValidationRule(),
        data=data,
        **{key: data[key] for key in plain if key in data},
    )
    if spec.template != OF_DATASET:
        check_templates(spec.template, None)
    return replace(spec, hash=_hash(spec))


def _settings(data: Mapping[str, Any]) -> RowSettings:
    def part(entry: Mapping[str, Any]) -> PartSettings:
        grid = entry.get("grid")
        grids = None if grid is None else (grid,) if isinstance(grid, dict) else tuple(grid)
        templates = entry.get("templates")
        return PartSettings(
            entry.get("parameters", {}),
            grids,
            entry.get("recipe", {}),
            check_templates(None, templates) if templates else (),
        )

    return RowSettings(*({name: part(entry) for name, entry in data.get(key, {}).items()} for key in _SETTINGS))


def _cases(raw: Mapping[str, Any], shared: Mapping[str, Any], where: str, seeds: tuple[int, ...]) -> Iterator[Case]:
    """One case, or for a leave-one-domain-out entry one per domain, which is tested while the others are trained on."""
    classes = raw.get("classes", "all")
    if classes != "all":
        for seed in seeds:
            class_list(classes.replace("{seed}", str(seed)), f"{where}.classes")
    train, domains = raw.get("train"), raw.get("leave_one_domain_out", [])
    for domain in domains or [None]:
        meaning = {HELD_OUT: [domain], OTHERS: [other for other in domains if other != domain]} if domains else {}
        image_set = functools.partial(_image_set, dataset=raw["dataset"], meaning=meaning)
        closed, opened = (
            tuple(
                image_set(str(name), entry or {}, f"{where}.{role}.{name}", role)
                for name, entry in raw.get(role, {}).items()
            )
            for role in ("closed", "open")
        )
        yield Case(
            name=f"{raw['name']}/{domain}" if domains else raw["name"],
            group=raw["name"],
            dataset=raw["dataset"],
            classes=classes,
            train=None if train is None else image_set("train", train, f"{where}.train", "closed"),
            closed=closed,
            open=opened,
            settings=_settings(merged(shared, {key: raw[key] for key in _SETTINGS if key in raw})),
        )


def _image_set(
    name: str, raw: Mapping[str, Any], where: str, role: str, *, dataset: str, meaning: Mapping[str, list[str]]
) -> SetSpec:
    """The set of an entry; `meaning` has the domains of a leave-one-domain-out case by their names in the file."""
    own = raw.get("dataset", dataset)
    # An open set of another dataset is all of it; of the same dataset, the classes not on the class list.
    classes = raw.get("classes", "all" if role == "open" and own != dataset else role)
    if classes not in {"all", "closed", "open"}:
        class_list(classes, f"{where}.classes")
    if raw.get("without") is not None:
        class_list(raw["without"], f"{where}.without")
    domains = raw.get("domains", [])
    plain = ("split", "without", "per_class", "own_classes", "splits", "draw")
    return SetSpec(
        name=name,
        dataset=own,
        classes=classes,
        domains=tuple(meaning.get(domains, [domains]) if isinstance(domains, str) else domains),
        kind=raw.get("kind", "id" if own == dataset else "shifted"),
        **{key: raw[key] for key in plain if key in raw},
    )


def _hash(spec: BenchmarkSpec) -> str:
    """Hash of everything that decides images and classes; without titles and default methods."""
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
