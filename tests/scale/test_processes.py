"""Worker processes fill the store that one process would, whatever happens to them."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from deltaenergy import Model, build_store, load_model
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.scale import Processes, processes
from deltaenergy.scale.shard_worker import ShardWorker, settings_of
from deltaenergy.store.plan import FOLDER
from deltaenergy.store.writer import Filled, Task
from tests import fresh
from tests.cli.runner import Runner
from tests.scale import kills
from tests.scale.conftest import content
from tests.servers import Answer, faulty_server
from tests.store.shards import samples

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at processes in /proc")


Started = list["subprocess.Popen[str]"]


def work_is_done_by(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Started:
    """Have `program` run in the place of every worker; all that were started."""
    script = folder / "worker.py"
    script.write_text(program)
    started: Started = []
    popen = processes.subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        started.append(popen([sys.executable, str(script)], **options))
        return started[-1]

    monkeypatch.setattr(processes.subprocess, "Popen", start)
    return started


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, bytes]]:
    """A model, pictures, and the store of one process, which nobody disturbed."""
    folder = tmp_path_factory.mktemp("kills")
    model, pictures = kills.prepare(folder)
    build_store(load_model(model), pictures, folder / "whole", shard_size=4, batch_size=2)
    return model, pictures, content(folder / "whole")


@pytest.mark.parametrize("victim", ["worker", pytest.param("driver", marks=pytest.mark.campaign)])
def test_a_kill_loses_nothing(victim: str, subject: tuple[Path, Path, dict[str, bytes]], tmp_path: Path) -> None:
    """And the bytes do not depend on the number of workers."""
    model, pictures, whole = subject
    out = tmp_path / "store"
    kills.trial(model, pictures, out, whole, victim, functools.partial(kills.wait_for_a_shard, out))


def test_a_worker_that_dies_again_and_again_is_an_error(
    tiny_clip: Model, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad_luck = "import os, sys; sys.stdin.readline(); print('bad luck', file=sys.stderr, flush=True); os._exit(3)"
    began = work_is_done_by(bad_luck, tmp_path, monkeypatch)
    with pytest.raises(ArtifactError, match=r"3 times.*code 3 bad luck"):
        build_store(tiny_clip, photos, tmp_path / "store", fill=Processes(1))
    assert len(began) == 3
    monkeypatch.undo()
    assert len(build_store(tiny_clip, photos, tmp_path / "store")) == 8


def test_what_a_worker_says_is_wrong_is_said(subject: tuple[Path, Path, dict[str, bytes]], tmp_path: Path) -> None:
    """Here no file may be larger than 20,000 bytes, as if the disk were full."""
    program = """
import resource, signal, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
import deltaenergy as de
from deltaenergy.scale import Processes
try:
    de.build_store(de.load_model(sys.argv[1]), *sys.argv[2:], patches=True, dtype="float32", fill=Processes(1))
except de.DeltaEnergyError as error:
    print(type(error).__name__, error)
"""
    done = fresh.run_code(program, *subject[:2], tmp_path / "store")
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert said.startswith("ArtifactError")
    assert "cannot be written: File too large. What it holds so far is whole: run again to go on." in said
    store = build_store(load_model(subject[0]), subject[1], tmp_path / "store", patches=True)
    assert (len(store), store.verify()) == (kills.IMAGES - 1, [])


def test_pictures_in_memory_stay_in_this_process(tiny_clip: Model, tmp_path: Path) -> None:
    pictures = [Image.new("RGB", (40, 40), colour) for colour in ("red", "blue")]
    with pytest.raises(InputError, match="'image 0'"):
        build_store(tiny_clip, pictures, tmp_path / "store", fill=Processes(2))
    assert len(build_store(tiny_clip, pictures, tmp_path / "store")) == 2


def test_a_model_that_cannot_be_loaded_again_is_said(tiny_clip: Model, photos: Path, tmp_path: Path) -> None:
    def work(task: Task, *_: object) -> Iterator[Filled]:
        ShardWorker(settings_of(task, "cpu", None))
        yield from ()

    other = tiny_clip.derived("something")
    with pytest.raises(ArtifactError, match="another model"):
        build_store(other, photos, tmp_path / "store", fill=work)


def test_an_interrupt_ends_the_workers(
    tiny_clip: Model, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here one that would go on for long."""

    def stop(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    began = work_is_done_by(
        "import time; print('{\"progress\": 1}', flush=True); time.sleep(600)", tmp_path, monkeypatch
    )
    with pytest.raises(KeyboardInterrupt):
        build_store(tiny_clip, photos, tmp_path / "store", shard_size=2, fill=Processes(1), progress=stop)
    assert [process.returncode for process in began] == [-signal.SIGKILL]
    assert len(build_store(tiny_clip, photos, tmp_path / "store")) == 8


def test_the_command(tiny_clip_folder: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner = Runner(capsys)
    out = tmp_path / "store"
    command = ["features", str(photos), "--out", str(out), "--model", str(tiny_clip_folder), "--json"]
    done = runner(*command, "--workers", "1", "--shard-size", "3")
    assert (done.code, done.json["images"]) == (0, 8)
    assert not (out / FOLDER).exists()
    refused = runner(*command, "--workers", "0")
    assert refused.code == 2


@pytest.mark.campaign
def test_workers_read_archives_at_addresses(tiny_clip: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fetches the parts that its shards need, from the lines of the plan."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with faulty_server() as web:
        url = f"{web.url}/{{0,1}}.tar"
        for number in range(2):
            web.says(f"/{number}.tar", Answer(body=samples(6, 10 * number), headers={"ETag": '"1"'}))
        build_store(tiny_clip, url, tmp_path / "whole", shard_size=4)
        shared = build_store(tiny_clip, url, tmp_path / "shared", shard_size=4, fill=Processes(1))
    assert len(shared.ids) == 12 and not shared.unreadable
    assert content(tmp_path / "shared") == content(tmp_path / "whole")


def test_no_workers_are_refused() -> None:
    with pytest.raises(InputError, match=r"workers.*got 0"):
        Processes(0)


def test_a_worker_ends_with_the_one_that_started_it() -> None:
    command = [sys.executable, "-m", "deltaenergy.scale.worker"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 0
