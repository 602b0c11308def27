"""The service under load, on the loopback address: 32 clients, readable and broken images, every answer checked.

    python bench/serve_load.py [requests]      10,000 by default

The peer is the bare loop `model.encode_images` over the same images. Both take turns, a thousand requests and a few
seconds of the loop at a time, and the ratio is the median over the turns, because machines are noisy. Every tenth image
is broken in some way. The service is a process of its own; clients are threads of this one, with one connection each,
and wait for an answer before they ask again. Nothing outlives the run.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import deltaenergy as de

CLIENTS = 32
PICTURES = 200
TURN = 1000
CLASSES = ["dog", "cat", "horse", "house", "tree", "car", "person"]
BOUNDARY = "boundary"


def picture(seed: int) -> bytes:
    """A JPEG of 256 × 256 pixels: smooth noise, so that it is neither trivial nor huge to decode."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 255, (16, 16, 3), np.uint8))
    data = io.BytesIO()
    small.resize((256, 256), Image.Resampling.BICUBIC).save(data, "JPEG", quality=90)
    return data.getvalue()


def broken(seed: int) -> bytes:
    """Empty, cut short, or not an image."""
    return (b"", picture(seed)[:300], b"GIF89a" + bytes(20), b"no picture")[seed % 4]


def body_of(data: bytes, name: str) -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'
    return head.encode() + data + f"\r\n--{BOUNDARY}--\r\n".encode()


def memory_mb(pid: int) -> float:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return float("nan")


def images_per_second(model: Any, pictures: list[bytes]) -> float:
    began = time.perf_counter()
    model.encode_images(pictures)
    return len(pictures) / (time.perf_counter() - began)


class Load:
    """What the clients share."""

    def __init__(self, port: int, pid: int, requests: int, expected: dict[str, Any]) -> None:
        self.port, self.pid, self.requests, self.expected = port, pid, requests, expected
        self.lock, self.next, self.until, self.again = threading.Lock(), 0, 0, 0
        self.seconds: list[float] = []
        self.wrong: list[str] = []
        self.memory: dict[int, float] = {}
        self.bodies = {name: body_of(data, name) for name, data in self._pictures()}
        self.names = list(self.bodies)

    @staticmethod
    def _pictures() -> list[tuple[str, bytes]]:
        good = [(f"{i}.jpg", picture(i)) for i in range(PICTURES) if i % 10]
        return good + [(f"bad{i}.jpg", broken(i)) for i in range(PICTURES // 10)]

    def turn(self) -> float:
        """The next requests, by all clients at once: readable images answered per second."""
        first, self.until = self.until, min(self.until + TURN, self.requests)
        self.next = first
        self.memory[first] = memory_mb(self.pid)
        began = time.perf_counter()
        clients = [threading.Thread(target=self.client) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        took = time.perf_counter() - began
        self.memory[self.until] = memory_mb(self.pid)
        return sum(self.names[i % len(self.names)] in self.expected for i in range(first, self.until)) / took

    def client(self) -> None:
        """Ask until the requests of this turn are made."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
        while True:
            with self.lock:
                number, self.next = self.next, self.next + 1
            if number >= self.until:
                connection.close()
                return
            name = self.names[number % len(self.names)]
            while True:
                began = time.perf_counter()
                connection.request("POST", "/v1/verdicts", self.bodies[name], headers)
                answer = connection.getresponse()
                found = json.loads(answer.read())
                if answer.status != 429:
                    break
                with self.lock:
                    self.again += 1
                time.sleep(0.05)
            with self.lock:
                self.seconds.append(time.perf_counter() - began)
                self.check(name, answer.status, found)

    def check(self, name: str, status: int, found: Any) -> None:
        """Note an answer that is not what the detector itself says."""
        right = self.expected.get(name)
        if right is None:
            if status != 422 or found["detail"][0]["path"] != name:
                self.wrong.append(f"{name}: {status}")
            return
        image = found["images"][0] if status == 200 else {}
        same = image.get("path") == name and (image.get("label"), image.get("is_ood")) == (right.label, right.is_ood)
        if not same or abs(image["score"] - right.score) > 1e-4 * max(1.0, abs(right.score)):
            self.wrong.append(f"{name}: {status} {image}")


def main() -> None:
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    model = de.load_model("lite")
    known = [picture(i) for i in range(1000, 1100)]
    detector = de.Detector(de.ZeroShotClassifier(model, CLASSES)).calibrate(known, 0.5)
    pictures = {name: data for name, data in Load._pictures() if not name.startswith("bad")}
    expected = dict(zip(pictures, detector.predict(list(pictures.values()))))
    with tempfile.TemporaryDirectory() as folder:
        detector.save(folder)
        code = "from deltaenergy.cli.main import run; run()"
        service = subprocess.Popen(
            [sys.executable, "-c", code, "serve", "--port", "0", "--detector", f"it={folder}"],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ,
        )
        try:
            assert service.stderr is not None
            line = next(line for line in service.stderr if line.startswith("Ready"))
            load = Load(int(line.split(":")[3].split("/")[0]), service.pid, requests, expected)
            images_per_second(model, [*pictures.values()])  # the first batches are slow
            bare, served = [images_per_second(model, [*pictures.values()] * 2)], []
            while load.until < requests:
                served.append(load.turn())
                bare.append(images_per_second(model, [*pictures.values()] * 2))
        finally:
            service.terminate()
            service.wait(60)
    times = np.sort(load.seconds)
    ratios = [2 * rate / (before + after) for rate, before, after in zip(served, bare, bare[1:])]
    print(f"{requests} requests by {CLIENTS} clients, {len(served)} turns, {load.again} asked again after 429")
    print(f"wrong, lost or swapped answers: {len(load.wrong)} {load.wrong[:3]}")
    print(
        f"readable images per second {np.median(served):.1f}, the bare loop {np.median(bare):.1f} (medians over turns)"
    )
    print(f"ratio to the bare loop: median {np.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")
    print(f"seconds: p50 {np.quantile(times, 0.5):.3f}, p99 {np.quantile(times, 0.99):.3f}")
    told = ", ".join(f"{megabytes:.0f} after {number:,}" for number, megabytes in load.memory.items())
    print(f"memory of the service in MB: {told}")


if __name__ == "__main__":
    main()
