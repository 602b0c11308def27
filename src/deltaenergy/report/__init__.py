"""Reports: one HTML file each, for light and dark screens, phones and paper; nothing is loaded from the network.

`write_report(evaluation, "report.html")`; `write_verdicts` for a page of pictures and their verdicts. The pieces serve
other reports too: `charts` (SVG), `page` (sections, tables, key figures), `html` (escaping); none imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltaenergy.report.write import write_report, write_verdicts

__all__ = ["write_report", "write_verdicts"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from deltaenergy.report import write

        return getattr(write, name)
    raise AttributeError(f"module 'deltaenergy.report' has no attribute {name!r}")
