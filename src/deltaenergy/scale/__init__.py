"""Many processes, on one machine or on many: the same stores and verdicts as one process makes, sooner.

processes.py    worker processes on this machine fill a feature store
worker.py       one of them
shard_worker.py encodes planned shards of a store, wherever it runs
ray_cluster.py  work on Ray actors: ray_score.py scores images, ray_features.py fills a store
scorer.py       verdicts for batches of columns, inside Ray Data and its like

Ray is imported only where it runs.
"""

from deltaenergy.scale.processes import Processes
from deltaenergy.scale.ray_features import RayActors
from deltaenergy.scale.scorer import Scorer

__all__ = ["Processes", "RayActors", "Scorer"]
