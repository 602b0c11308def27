"""The service as a process: many clients at once, those that dawdle or leave, and a stop that loses nothing."""

from __future__ import annotations

import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests import fresh
from tests.serve.conftest import PICTURES, png
from tests.serve.process import BOUNDARY, Service, form


@pytest.fixture(scope="module")
def folders(detectors: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {name: tmp_path_factory.mktemp("detectors") / name for name in detectors}
    for name, detector in detectors.items():
        detector.save(found[name])
    return found


@pytest.fixture(scope="module")
def service(folders: dict[str, Path]) -> Iterator[Service]:
    running = Service(folders, "--limits", "seconds=60")
    yield running
    running.process.kill()


HEAD = f"POST /v1/verdicts HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary={BOUNDARY}\r\n"


def half_a_request() -> bytes:
    """A form that is not sent to its end."""
    body = form(PICTURES[:1])
    return f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body[: len(body) // 2]


def test_answers_of_many_clients_are_not_swapped(service: Service, detectors: Any) -> None:
    """Each asks with pictures of its own, some of which are none."""
    requests = []
    for i in range(40):
        name = ("colours", "letters")[i % 2]
        requests.append((name, [png(1000 + i), b"bad" * (i % 3), png(2000 + i)]))
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda one: service.verdicts(one[1], one[0]), requests))
    for (name, pictures), (status, body) in zip(requests, answers):
        assert status == 200
        expected = detectors[name].predict([pictures[0], pictures[2]])
        first, bad, last = body["images"]
        assert bad["error"]
        for found, right in zip((first, last), expected):
            assert (found["label"], found["is_ood"]) == (right.label, right.is_ood)
            assert found["score"] == pytest.approx(right.score, rel=1e-5)


def test_dawdlers_and_those_who_leave_block_nobody(service: Service) -> None:
    held = []
    for _ in range(20):
        one = socket.create_connection(("127.0.0.1", service.port))
        one.sendall(half_a_request())
        held.append(one)
    body = form(PICTURES * 4, detector="colours")
    for _ in range(3):
        one = socket.create_connection(("127.0.0.1", service.port))
        one.sendall(f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        one.close()
    status, answer = service.verdicts(PICTURES[:2])
    assert (status, len(answer["images"])) == (200, 2)
    for one in held:
        one.close()
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with urllib.request.urlopen(f"http://127.0.0.1:{service.port}/metrics") as found:
            lines = found.read().decode().splitlines()
        if "deltaenergy_images_under_way 0.0" in lines:
            break
        time.sleep(0.2)
    assert "deltaenergy_images_under_way 0.0" in lines


def test_a_body_that_does_not_come_is_given_up(folders: dict[str, Path]) -> None:
    running = Service(folders, "--limits", "seconds=1,files=4")
    with socket.create_connection(("127.0.0.1", running.port)) as one:
        one.sendall(half_a_request())
        one.settimeout(60)
        assert b"408" in one.recv(1000).split(b"\r\n")[0]
    assert running.stop() == 0


def test_a_stop_loses_no_accepted_request(folders: dict[str, Path], detectors: Any) -> None:
    running = Service(folders)
    pictures = [png(seed, 300) for seed in range(24)]
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(running.verdicts, pictures) for _ in range(4)]
        time.sleep(0.3)
        os.kill(running.process.pid, signal.SIGTERM)
        answers, refused = [], 0
        for one in asked:
            try:
                answers.append(one.result())
            except (urllib.error.URLError, ConnectionError):
                refused += 1  # came after the stop
    assert running.process.wait(60) == 0
    assert answers or refused
    for status, body in answers:
        assert status == 200 and all(image["error"] is None for image in body["images"])


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    def run(*options: str) -> Any:
        return fresh.run_code("from deltaenergy.cli.main import run; run()", "serve", *options)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = run("--port", str(taken.getsockname()[1]))
    assert found.returncode == 2 and "Try another --port" in found.stderr
    found = run("--detector", str(tmp_path / "absent"), "--port", "0")
    assert found.returncode == 2 and "absent" in found.stderr and "Traceback" not in found.stderr
    found = run("--api-key-file", str(tmp_path / "absent"))
    assert found.returncode == 2 and "--api-key-file" in found.stderr
