"""What the driver does when Ray, or a worker of it, is gone for good."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from deltaenergy.errors import ArtifactError
from deltaenergy.scale import ray as scale_ray
from tests.scale.ray_here import own_ray


def cluster_with_head_at(port: int) -> scale_ray.Cluster:
    cluster = scale_ray.Cluster("auto")
    cluster._head, cluster._answered, cluster._looked = ("127.0.0.1", port), 100.0, 100.0
    return cluster


def test_a_head_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(scale_ray, "time", SimpleNamespace(monotonic=lambda: clock.now))
    with socket.create_server(("127.0.0.1", 0)) as server:
        cluster = cluster_with_head_at(server.getsockname()[1])
        clock.now += scale_ray.PATIENCE + 5
        cluster._check_alive()
    clock.now += scale_ray.PATIENCE - 1
    cluster._check_alive()  # it may come back
    clock.now += 5
    with pytest.raises(ArtifactError, match="head of Ray"):
        cluster._check_alive()


class Dies:
    """An actor that each row ends."""

    def __init__(self, device: str) -> None:
        assert device == "cpu"

    def __call__(self, row: Any) -> Any:
        os._exit(1)


def test_a_part_that_ends_every_worker_stops_the_run() -> None:
    pytest.importorskip("ray", reason="ray is not installed: make test-ray")
    with own_ray(), scale_ray.Cluster("auto", 1) as cluster:
        found = cluster.map([{"shard": i} for i in range(2)], Dies)
        with pytest.raises(ArtifactError, match=rf"ended {scale_ray.MOST_RETRIES + 1} times"):
            list(found)
