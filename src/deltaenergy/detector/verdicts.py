"""The two words of every verdict, the same in tables, JSON, reports and folder names: *known* and *none of these*."""

from __future__ import annotations

KNOWN = "known"
NONE_OF_THESE = "none of these"


def verdict_word(is_ood: bool) -> str:
    """What a verdict is called."""
    return NONE_OF_THESE if is_ood else KNOWN
