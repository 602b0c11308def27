"""Verdicts as a table with fixed columns and types, those of `score --out`, and why an image has none.

path label confidence [label_2 confidence_2 …] score p_value is_ood verdict error
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deltaenergy.detector.verdicts import verdict_word

if TYPE_CHECKING:
    import pyarrow as pa

    from deltaenergy.detector.detector import Detector
    from deltaenergy.scoring import Scored


def verdict_schema(classes: int, top_k: int = 1) -> pa.Schema:
    """The columns, with those of the next most similar classes where several are told."""
    import pyarrow as pa

    text, number = pa.string(), pa.float64()
    ranks = [
        column
        for rank in range(2, min(top_k, classes) + 1)
        for column in ((f"label_{rank}", text), (f"confidence_{rank}", number))
    ]
    judged = [("score", number), ("p_value", number), ("is_ood", pa.bool_()), ("verdict", text)]
    return pa.schema([("path", text), ("label", text), ("confidence", number), *ranks, *judged, ("error", text)])


def verdict_table(detector: Detector, scored: Scored, top_k: int = 1) -> pa.Table:
    """A row for each image that was read, then one for each that was not: with its error, and nothing else."""
    import pyarrow as pa

    classes = detector.classifier.classes
    verdicts = detector.judge(scored)
    found: dict[str, list[Any]] = {
        "path": [verdict.id for verdict in verdicts],
        "label": [verdict.label for verdict in verdicts],
        "confidence": [verdict.confidence for verdict in verdicts],
        "score": [verdict.score for verdict in verdicts],
        "p_value": [verdict.p_value for verdict in verdicts],
        "is_ood": [verdict.is_ood for verdict in verdicts],
        "verdict": [verdict_word(verdict.is_ood) for verdict in verdicts],
        "error": [None] * len(verdicts),
    }
    if scored.top is not None and scored.top_confidence is not None:
        for rank in range(1, scored.top.shape[1]):
            found[f"label_{rank + 1}"] = [classes[position] for position in scored.top[:, rank]]
            found[f"confidence_{rank + 1}"] = scored.top_confidence[:, rank].astype(float).tolist()
    missing = [None] * len(scored.unreadable)
    told = {"path": [image.id for image in scored.unreadable], "error": [image.reason for image in scored.unreadable]}
    schema = verdict_schema(len(classes), top_k)
    # A batch without a readable image has no ranks.
    columns = [found.get(name, [None] * len(verdicts)) + told.get(name, missing) for name in schema.names]
    return pa.table([pa.array(values, kind) for values, kind in zip(columns, schema.types)], schema=schema)
