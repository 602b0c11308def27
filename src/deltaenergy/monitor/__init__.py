"""Is what comes in still what the detector was calibrated for? Told with a bound on false alarms at any time.

rate.py         a bet that more images are called none of these than the calibration allows
evidence.py        a conformal martingale against a reference that grows, for small shifts
restarts.py     half of the stake of each test, dealt out over all images to begin at
history.py      what is remembered of the images: the rate over time, classes, pictures
monitor.py      `Monitor`: both tests on a detector's verdicts
state.py        the monitor on disk: one small JSON file
"""

from deltaenergy.monitor.history import Block, ClassChange, SeenPicture
from deltaenergy.monitor.monitor import Monitor, Status
from deltaenergy.monitor.state import open_monitor

__all__ = ["Block", "ClassChange", "Monitor", "SeenPicture", "Status", "open_monitor"]
