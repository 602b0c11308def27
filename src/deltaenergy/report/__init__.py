"""Reports: one HTML file each, complete in itself, for light and dark screens, phones and paper.

`write_report(evaluation, "report.html")`. The pieces serve other reports too: `charts` (SVG), `page` (sections,
tables, key figures), `html` (escaping); none of them imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltaenergy.report.write import write_report

__all__ = ["write_report"]


def __getattr__(name: str) -> Any:
    if name == "write_report":
        from deltaenergy.report.write import write_report

        return write_report
    raise AttributeError(f"module 'deltaenergy.report' has no attribute {name!r}")
