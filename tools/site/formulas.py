"""Formulas between dollars become MathML, which browsers draw by themselves: no script and no font is loaded."""

from __future__ import annotations

import re

from latex2mathml.converter import convert

_CODE = re.compile(r"(^```.*?^```|^(?: {4}.*\n)+|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(\S(?:[^$\n]*\S)?)\$", re.DOTALL)


def with_formulas(text: str) -> str:
    """A page with its formulas as MathML; what is code stays as it is."""
    parts = _CODE.split(text)
    return "".join(part if i % 2 else _FORMULA.sub(_mathml, part) for i, part in enumerate(parts))


def _mathml(match: re.Match[str]) -> str:
    block, line = match[1], match[2]
    if block is None:
        return convert(line, display="inline")
    return f'<div class="formula">{convert(block.strip(), display="block")}</div>'
