"""Do incoming images still look like the calibration images? With a bound on false alarms over all time.

evidence.py     two bets against "nothing has changed", later starts of each, and when it probably changed
history.py      what is remembered of the images: the rate over time, classes, the last rejected images
monitor.py      `Monitor`: both tests on a detector's verdicts
state.py        the monitor on disk: one small JSON file
"""

from deltaenergy.monitor.history import Block, ClassChange, FlaggedImage
from deltaenergy.monitor.monitor import Monitor, Status

__all__ = ["Block", "ClassChange", "FlaggedImage", "Monitor", "Status"]
