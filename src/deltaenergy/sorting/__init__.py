"""Put a user's pictures into folders by verdict and class, and take that back.

    DIR/known/<class>/…        DIR/none of these/…        DIR/undo-1.jsonl

plan.py     which file goes where: safe names, nothing overwritten
act.py      copy, link or move, after the whole plan is on disk
undo.py     read that plan and put everything back
"""

from deltaenergy.sorting.act import Sorted, sort_files
from deltaenergy.sorting.plan import Entry, How, Left, Placement, Plan, plan_sorting, refuse_inside
from deltaenergy.sorting.undo import Undone, undo_sorting

__all__ = [
    "Entry",
    "How",
    "Left",
    "Placement",
    "Plan",
    "Sorted",
    "Undone",
    "plan_sorting",
    "refuse_inside",
    "sort_files",
    "undo_sorting",
]
