"""Many processes, on one machine or on many: the same stores and verdicts as one process makes, sooner.

processes.py    worker processes on this machine fill a feature store
worker.py       one of them
shard_worker.py encodes planned shards of a store, wherever it runs
"""

from deltaenergy.scale.processes import Processes

__all__ = ["Processes"]
