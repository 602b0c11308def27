"""A Ray of the tests' own: two CPUs, this machine only, no authentication, no reports, little memory, a short path."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Ray's sockets lie under its folder, and their paths may be no longer than 107 bytes.
SETTINGS = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}


@contextmanager
def own_ray(cpus: int = 2) -> Iterator[Any]:
    """Ray, started for the block and ended with it."""
    os.environ.update(SETTINGS)
    import ray

    with tempfile.TemporaryDirectory(prefix="de-ray-", ignore_cleanup_errors=True) as folder:
        for attempt in range(5):
            try:
                ray.init(
                    address="local",
                    num_cpus=cpus,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level="ERROR",
                    object_store_memory=100 << 20,
                    _node_ip_address="127.0.0.1",
                    _temp_dir=folder,
                )
                break
            except Exception:  # on a busy machine it may not be up within its thirty seconds
                ray.shutdown()
                if attempt == 4:
                    raise
        try:
            yield ray
        finally:
            ray.shutdown()
