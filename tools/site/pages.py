"""Generated pages: one per score, tuning method and command, and the reference of the public names."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import typer
from figures import Results, slug

from deltaenergy.cli.main import app
from deltaenergy.cli.shell.app import EXAMPLES

# The public names by what a reader looks for; a name that is in none of these groups is an error.
REFERENCE: Mapping[str, tuple[str, ...]] = {
    "Everyday calls": ("score", "sort", "undo", "adapt", "calibrate", "ClassNames"),
    "Models": ("load_model", "Model", "TowerModel", "PrecomputedModel"),
    "Classifiers": ("ZeroShotClassifier", "Classifier", "PrecomputedClassifier"),
    "Scores": ("make_score", "list_scores", "Score"),
    "Detectors": ("Detector", "Verdict", "Verdicts", "AdaptiveDetector", "choose"),
    "Tuning": ("tune", "tune_detector", "LabelledFeatures", "list_methods"),
    "Images and features": ("load_images", "image_stream", "build_store", "repair_store", "Store"),
    "Evaluation and reports": ("evaluate", "compare", "write_report"),
    "Explanations": ("explain",),
    "Monitoring": ("Monitor",),
    "Errors and progress": ("DeltaEnergyError", "show_progress"),
}


def file_name(name: str) -> str:
    """A page's file: names hold + and other characters that addresses do not."""
    return name.replace("++", "-plus-plus").replace("+", "-plus-") + ".md"


def method_page(row: Mapping[str, Any], results: Results) -> str:
    """All about one score, stream adapter or tuning method."""
    use = {
        "score": f'deltaenergy score photos/ --id good/ --classes "dog,cat" --score "{row["name"]}"',
        "stream adapter": f'deltaenergy adapt photos/ --id good/ --classes "dog,cat" --method {row["name"]}',
        "tuning method": f'deltaenergy tune --train few/ --method "{row["name"]}" --out tuned/',
        "tuning term": f'deltaenergy tune --train few/ --method "coop+{row["name"]}" --out tuned/',
    }[row["kind"]]
    lines = [
        f"# {row['name']}",
        "",
        f"{row['summary'][:1].upper()}{row['summary'][1:]}.",
        "",
        "```text",
        row["formula"],
        "```",
        "",
        "| | |",
        "|---|---|",
        f"| kind | {row['kind']} |",
        f"| paper | {_cell(row['paper'] or 'this package')} |",
        f"| needs | {_cell(', '.join(row['needs']))} |",
        f"| defaults | {_cell(_settings(row['defaults']) or 'none')} |",
    ]
    for preset, values in row["presets"].items():
        lines.append(f"| `{row['name']}:{preset}` | {_cell(_settings(values))} |")
    lines += ["", "```sh", use, "```", "", "## Measured", ""]
    found, files = results.tables_of(row["name"]), results.files_of(row["name"])
    for page, table in found:
        lines += [f"### [{table.headings[-1]}](../results/{page}#{slug(table.headings[-1])})", ""]
        lines += [_line(table.columns), _line(["---"] * len(table.columns)), *map(_line, table.rows), ""]
    if found:
        lines += ["Each heading links to the data and the command.", ""]
    if files:
        links = ", ".join(f"[{file.removesuffix('.csv')}](../results/tables/{file})" for file in files)
        lines += [f"All rows, as CSV files: {links}.", ""]
    if not found and not files:
        lines += ["Not measured in [the results](../results/index.md).", ""]
    return "\n".join(lines)


def list_page(title: str, intro: str, rows: list[Mapping[str, Any]]) -> str:
    """The entrance to such pages."""
    lines = [f"# {title}", "", intro, "", "| name | what it does | needs | paper |", "|---|---|---|---|"]
    for row in rows:
        needs = ", ".join(need for need in row["needs"] if need not in ("similarities", "labelled images")) or "–"
        cells = [f"[{row['name']}]({file_name(row['name'])})", _cell(row["summary"]), needs, _cell(row["paper"] or "")]
        lines.append(_line(cells))
    return "\n".join([*lines, ""])


def command_pages() -> dict[str, str]:
    """A page per command with what its --help prints, and a list of them."""
    commands: Mapping[str, Any] = typer.main.get_command(app).commands
    index = ["# Commands", "", "Every command prints this with `--help`.", ""]
    pages, panel = {}, ""
    for name, command in commands.items():
        if command.rich_help_panel != panel:
            panel = command.rich_help_panel
            index += ["", f"## {panel}", "", "| command | what it does |", "|---|---|"]
        summary = command.help.partition("\n")[0]
        index.append(_line([f"[{name}]({name}.md)", _cell(summary)]))
        lines = [f"# {name}", "", command.help, "", "| option | meaning |", "|---|---|"]
        with command.make_context(name, [], resilient_parsing=True) as context:
            records = [record for one in command.params if (record := one.get_help_record(context))]
        lines += [_line([f"`{_cell(option)}`", _cell(meaning)]) for option, meaning in records]
        lines += ["", "```sh", *EXAMPLES[name], "```", ""]
        pages[f"{name}.md"] = "\n".join(lines)
    return {"index.md": "\n".join([*index, ""]), **pages}


def reference_pages() -> dict[str, str]:
    """A page per group of public names, each with what their docstrings say."""
    public: dict[str, str] = dict(importlib.import_module("deltaenergy").__dict__["_PUBLIC"])
    public["explain"] = "deltaenergy.explanation.explain"
    grouped = [name for names in REFERENCE.values() for name in names]
    if sorted(grouped) != sorted(public):
        raise SystemExit(f"tools/site/pages.py: REFERENCE and the public names differ: {set(grouped) ^ set(public)}")
    pages = {}
    for title, names in REFERENCE.items():
        lines = [f"# {title}", ""]
        for name in names:
            home = getattr(importlib.import_module(public[name]), name).__module__
            lines += [f"::: {home}.{name}", ""]
        pages[title.lower().replace(" ", "-") + ".md"] = "\n".join(lines)
    return pages


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
