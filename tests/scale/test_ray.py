"""What the driver does when Ray, or a worker of it, is gone for good."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from deltaenergy.errors import ArtifactError
from deltaenergy.scale import cluster as ray_cluster
from tests.scale.ray_here import own_ray


def cluster_with_head_at(port: int) -> ray_cluster.Cluster:
    context = SimpleNamespace(gcs_address=f"127.0.0.1:{port}")
    return ray_cluster.Cluster(SimpleNamespace(get_runtime_context=lambda: context))


def test_a_head_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(ray_cluster, "time", SimpleNamespace(monotonic=lambda: clock.now))
    with socket.create_server(("127.0.0.1", 0)) as server:
        cluster = cluster_with_head_at(server.getsockname()[1])
        clock.now += ray_cluster.PATIENCE + 5
        cluster._check_alive()
    clock.now += ray_cluster.PATIENCE - 1
    cluster._check_alive()  # it may come back
    clock.now += 5
    with pytest.raises(ArtifactError, match="head of Ray"):
        cluster._check_alive()


class Dies:
    """An actor that each row ends."""

    def __init__(self, argument: Any) -> None:
        pass

    def __call__(self, row: Any) -> Any:
        os._exit(1)


def test_a_part_that_ends_every_worker_stops_the_run() -> None:
    pytest.importorskip("ray", reason="ray is not installed: make test-ray")
    with own_ray() as ray:
        cluster = ray_cluster.Cluster(ray)
        found = cluster.map([cluster.put({"shard": i}) for i in range(2)], Dies, None, device="cpu", actors=1)
        with pytest.raises(ArtifactError, match=rf"ended {ray_cluster.MOST_RETRIES + 1} times"):
            list(found)
