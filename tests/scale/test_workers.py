"""Worker processes fill the store that one process would, whatever happens to them."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from deltaenergy import Model, build_store, load_model
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.scale import workers
from deltaenergy.source import image_stream
from deltaenergy.store.plan import FOLDER
from deltaenergy.store.writer import StoreSettings, Work, fill_store, join_here, place_in_array
from tests import fresh
from tests.cli.runner import Runner
from tests.scale import kills
from tests.scale.kills import content
from tests.servers import Answer, faulty_server
from tests.store.shards import samples

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at processes in /proc")


Started = list["subprocess.Popen[str]"]


def work_is_done_by(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Started:
    """Have `program` run in the place of every worker; all that were started."""
    script = folder / "worker.py"
    script.write_text(program)
    started: Started = []
    popen = workers.subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        started.append(popen([sys.executable, str(script)], **options))
        return started[-1]

    monkeypatch.setattr(workers.subprocess, "Popen", start)
    return started


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, bytes]]:
    """A model, images, and the store of one process, which nobody disturbed."""
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


def test_workers_that_die_one_after_the_other_are_an_error(
    tiny_clip: Model, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad_luck = "import os, sys; sys.stdin.readline(); print('bad luck', file=sys.stderr, flush=True); os._exit(3)"
    began = work_is_done_by(bad_luck, tmp_path, monkeypatch)
    with pytest.raises(ArtifactError, match=r"3 workers.*code 3 bad luck"):
        build_store(tiny_clip, photos, tmp_path / "store", workers=1)
    assert len(began) == 3
    monkeypatch.undo()
    assert len(build_store(tiny_clip, photos, tmp_path / "store")) == 8


def test_deaths_are_forgotten_when_a_shard_is_finished(
    tiny_clip: Model, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of these workers the first four die, each after it has finished a shard."""
    (tmp_path / "count").write_text("0")
    program = f"""
import json, os, sys
number = int(open({str(tmp_path / "count")!r}).read())
open({str(tmp_path / "count")!r}, "w").write(str(number + 1))
if number < 4:
    print("deltaenergy:", json.dumps({{"shard": number, "images": 2, "finished": True}}), flush=True)
    os._exit(3)
"""
    began = work_is_done_by(program, tmp_path, monkeypatch)
    seen: list[int] = []

    def join(work: Work, _: object) -> None:
        workers.join_with_workers(work, lambda done, total: seen.append(done), count=1)
        join_here(work, tiny_clip)

    fill_store(tiny_clip, image_stream(photos), tmp_path / "store", StoreSettings(shard_size=2), join=join)
    assert (len(began), seen) == (5, [2, 4, 6, 8])


def test_what_a_worker_says_is_wrong_is_said(subject: tuple[Path, Path, dict[str, bytes]], tmp_path: Path) -> None:
    """Here no file may be larger than 20,000 bytes, as if the disk were full."""
    program = """
import resource, signal, sys
sys.dont_write_bytecode = True
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
import deltaenergy as de
try:
    de.build_store(de.load_model(sys.argv[1]), *sys.argv[2:], patches=True, dtype="float32", workers=1)
except de.DeltaEnergyError as error:
    print(type(error).__name__, error)
"""
    done = fresh.run_code(program, *subject[:2], tmp_path / "store")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ArtifactError") and "File too large" in done.stdout
    store = build_store(load_model(subject[0]), subject[1], tmp_path / "store", patches=True)
    assert (len(store.readable), store.verify()) == (kills.IMAGES - 1, [])


def test_images_in_memory_stay_in_this_process(tiny_clip: Model, tmp_path: Path) -> None:
    pictures = [Image.new("RGB", (40, 40), colour) for colour in ("red", "blue")]
    with pytest.raises(InputError, match="'image 0'"):
        build_store(tiny_clip, pictures, tmp_path / "store", workers=2)
    assert len(build_store(tiny_clip, pictures, tmp_path / "store")) == 2


def test_a_model_that_cannot_be_loaded_again_is_said(tiny_clip: Model, photos: Path, tmp_path: Path) -> None:
    def join(work: Work, _: object) -> None:
        workers.open_work(workers.worker_settings(work), "cpu")

    other: Any = tiny_clip.derived("something")
    with pytest.raises(ArtifactError, match="different model"):
        fill_store(other, image_stream(photos), tmp_path / "store", StoreSettings(), join=join)


def test_an_interrupt_ends_the_workers(
    tiny_clip: Model, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here one that would go on for long."""

    def stop(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    began = work_is_done_by(
        """
import time
print('deltaenergy: {"shard": 0, "images": 1, "finished": false}', flush=True)
time.sleep(600)
""",
        tmp_path,
        monkeypatch,
    )
    with pytest.raises(KeyboardInterrupt):
        build_store(tiny_clip, photos, tmp_path / "store", shard_size=2, workers=1, progress=stop)
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
def test_workers_read_archives_at_urls(tiny_clip: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fetches the parts that its shards need, from the rows of the plan."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with faulty_server() as web:
        url = f"{web.url}/{{0,1}}.tar"
        for number in range(2):
            web.says(f"/{number}.tar", Answer(body=samples(6, 10 * number), headers={"ETag": '"1"'}))
        build_store(tiny_clip, url, tmp_path / "whole", shard_size=4)
        shared = build_store(tiny_clip, url, tmp_path / "shared", shard_size=4, workers=1)
    assert len(shared.ids) == 12 and not shared.unreadable
    assert content(tmp_path / "shared") == content(tmp_path / "whole")


def test_no_workers_are_refused(tiny_clip: Model, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"workers.*got 0"):
        build_store(tiny_clip, photos, tmp_path / "store", workers=0)


def test_a_worker_ends_with_the_one_that_started_it() -> None:
    command = [sys.executable, "-m", "deltaenergy.scale.workers"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 0


SLURM = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_COUNT", "SLURM_PROCID", "SLURM_NTASKS")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (None, 1)),
        ({"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "8"}, (2, 8)),
        ({"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_COUNT": "1"}, (None, 1)),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4"}, (2, 4)),
        ({"SLURM_PROCID": "x", "SLURM_NTASKS": "4"}, (None, 1)),
    ],
)
def test_tasks_of_a_slurm_array_know_their_number(
    environment: dict[str, str], expected: tuple[int | None, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "SLURM_ARRAY_TASK_ID",
        "SLURM_ARRAY_TASK_MIN",
        "SLURM_ARRAY_TASK_COUNT",
        "SLURM_PROCID",
        "SLURM_NTASKS",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert place_in_array() == expected
