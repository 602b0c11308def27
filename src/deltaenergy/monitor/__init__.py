"""Do incoming images still look like the calibration images? With a bound on false alarms over all time.

evidence.py     two bets against "nothing has changed", later starts of each, and when it probably changed
monitor.py      `Monitor`: both tests on a detector's verdicts
state.py        what is remembered of the images, and how it is saved: one small JSON file
"""

from deltaenergy.monitor.monitor import Monitor, Status
from deltaenergy.monitor.state import Block, ClassChange, FlaggedImage

__all__ = ["Block", "ClassChange", "FlaggedImage", "Monitor", "Status"]
