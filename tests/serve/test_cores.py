"""Batches that run together share the cores; one that runs alone has them all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from deltaenergy.serve.engine import MOST_WORKERS, Cores


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A machine of eight cores: the numbers of threads that were set."""
    asked: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    return asked


def test_a_lone_batch_has_all_cores_and_two_have_half_each(eight: list[int]) -> None:
    cores = Cores()
    with cores.share() as alone, cores.share() as second, cores.share() as third:
        pass
    with cores.share() as again:
        pass
    assert [alone, second, third, again] == [8, 4, 2, 8] == eight


def test_a_share_is_given_back_when_the_batch_fails(eight: list[int]) -> None:
    cores = Cores()
    with pytest.raises(ValueError), cores.share():
        raise ValueError
    with cores.share() as threads:
        assert threads == 8


def test_every_batch_has_a_core_even_if_there_are_more_batches_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    cores = Cores()
    with cores.share() as first, cores.share() as second:
        assert (first, second) == (1, 1)
    assert cores.workers() == 1


def test_other_devices_take_one_batch_after_the_other(eight: list[int]) -> None:
    assert Cores().workers("cuda") == 1
    assert Cores().workers() == MOST_WORKERS


def test_threads_set_in_one_thread_are_not_those_of_another() -> None:
    before = torch.get_num_threads()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: (torch.set_num_threads(3), torch.get_num_threads())[1]).result() == 3
        torch.set_num_threads(before)
        assert pool.submit(torch.get_num_threads).result() == 3
    assert torch.get_num_threads() == before
