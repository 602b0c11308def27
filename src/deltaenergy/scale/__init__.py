"""From one machine to many: what runs inside an engine that spreads work over processes and machines.

    ray.data.read_parquet("photos.store").map_batches(de.scale.Scorer, fn_constructor_args=["detector", "photos.store"])

Nothing here is imported with the package, and Ray only where it runs.
"""

from deltaenergy.scale.scorer import Scorer

__all__ = ["Scorer"]
