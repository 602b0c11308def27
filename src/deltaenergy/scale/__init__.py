"""Many processes, on one machine or on many: the same stores and verdicts as one process makes, sooner.

build.py      make and repair a feature store, wherever the work is done
workers.py    processes on this machine that join a store
ray.py        the same, and `score`, on a Ray cluster
engines.py    BatchScorer, Encoder and read_store for Ray Data and other engines that map batches

Ray is imported only where it runs.
"""

from deltaenergy.scale.build import build_store, repair_store
from deltaenergy.scale.engines import BatchScorer, Encoder, read_store
from deltaenergy.scale.ray import score_on_ray

__all__ = ["BatchScorer", "Encoder", "build_store", "read_store", "repair_store", "score_on_ray"]
