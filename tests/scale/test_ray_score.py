"""`score --ray`: the table of `score`, byte for byte; what is done is not done again, and what cannot be is refused."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

import deltaenergy as de
from deltaenergy.errors import InputError
from deltaenergy.scale import ray_cluster, ray_score
from tests.cli.runner import Result, Runner
from tests.scale.conftest import Scene, draw
from tests.scale.ray_here import own_ray

needs_ray = pytest.mark.usefixtures("ray")


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    pytest.importorskip("ray", reason="ray is not installed: make test-ray")
    with own_ray() as started:
        yield started


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Iterator[Runner]:
    """The command line; on one thread, as the actors are."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Runner(capsys)
    torch.set_num_threads(threads)


def both(
    command: Runner, scene: Scene, images: Path, folder: Path, ending: str, *more: object
) -> tuple[Result, Result]:
    """Score without Ray and with it; both tables are there, and nothing of ours beside them."""
    folder.mkdir(exist_ok=True)
    base = ["score", images, "--detector", scene.detector, *more]
    alone = command(*base, "--out", folder / f"alone{ending}")
    shared = command(*base, "--out", folder / f"shared{ending}", "--ray", "local")
    assert sorted(path.name for path in folder.iterdir()) == [f"alone{ending}", f"shared{ending}"]
    return alone, shared


@needs_ray
@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_a_store_gives_the_same_table(command: Runner, scene: Scene, tmp_path: Path, ending: str) -> None:
    alone, shared = both(command, scene, scene.store, tmp_path / "out", ending, "--top-k", 2)
    assert alone.code == shared.code == 1, "one image could not be read"
    assert alone.err.replace("alone", "shared") == shared.err
    first, second = (tmp_path / "out" / f"{name}{ending}" for name in ("alone", "shared"))
    if ending == ".parquet":
        assert pq.read_table(first).equals(pq.read_table(second)) and pq.read_table(second).num_rows == 22
    else:
        assert first.read_bytes() == second.read_bytes()


@needs_ray
def test_images_give_the_same_table(
    command: Runner, scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_score, "WINDOW_BATCHES", 1)
    monkeypatch.chdir(scene.root)
    alone, shared = both(command, scene, Path("images"), tmp_path / "out", ".csv", "--on", "batch=4")
    assert alone.code == shared.code == 1 and alone.err.replace("alone", "shared") == shared.err
    text = (tmp_path / "out" / "shared.csv").read_text()
    assert text == (tmp_path / "out" / "alone.csv").read_text() and len(text.splitlines()) == 23


@needs_ray
def test_a_store_with_replaced_and_shared_pictures(
    command: Runner, scene: Scene, tiny_clip: de.TowerModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_score, "STORED_BATCH", 4)
    images, store = draw(tmp_path / "images", 6, 4), tmp_path / "store"
    (images / "copy.png").write_bytes((images / "001.png").read_bytes())
    de.build_store(tiny_clip, images, store, shard_size=3)
    (images / "002.png").write_bytes((draw(tmp_path / "other", 1, 5) / "000.png").read_bytes())
    de.build_store(tiny_clip, images, store, shard_size=3)
    alone, shared = both(command, scene, store, tmp_path / "out", ".csv", "--on", "batch=1")
    assert alone.code == shared.code == 0
    assert (tmp_path / "out" / "alone.csv").read_bytes() == (tmp_path / "out" / "shared.csv").read_bytes()


@needs_ray
def test_parts_that_are_there_are_not_computed_again(
    command: Runner, scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detector = de.Detector.load(scene.detector)
    out, given = tmp_path / "verdicts.csv", []

    def run(hurt: str | None = None) -> None:
        scored = ray_score.score_on_ray(detector, str(scene.detector), str(scene.store), out)
        with scored as parts:
            assert sum(len(table) for table, _ in parts) == 22
            if hurt:
                raise ZeroDivisionError(hurt)

    with pytest.raises(ZeroDivisionError):
        run("the disk is full")
    (place,) = tmp_path.iterdir()
    assert place.name.startswith(".deltaenergy-verdicts.csv-") and len(list(place.iterdir())) == 5
    kept = {path: path.stat().st_mtime_ns for path in place.iterdir()}
    lost = sorted(kept)[2]
    lost.unlink()
    run_parts = ray_cluster.Cluster.run

    def counted(self: Any, actor: type, arguments: Any, parts: Any, **others: Any) -> Any:
        given.extend(part.name for part in parts)
        return run_parts(self, actor, arguments, parts, **others)

    monkeypatch.setattr(ray_cluster.Cluster, "run", counted)
    with pytest.raises(ZeroDivisionError):
        run("again")
    assert given == [lost.name]
    assert {path: path.stat().st_mtime_ns for path in place.iterdir() if path != lost} == {
        path: time for path, time in kept.items() if path != lost
    }
    run()
    assert given == [lost.name] and list(tmp_path.iterdir()) == [], "nothing was left to do, and the parts are gone"


def test_changed_images_and_other_requests_have_other_parts(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detector = de.Detector.load(scene.detector)
    images, asked = draw(tmp_path / "images", 40, 1), []
    monkeypatch.setattr(ray_score, "_fill", lambda request, parts, *_: asked.append((request.folder, parts)))
    for batch_size in (1, 1, 2):
        listed, out = de.load_images(images), tmp_path / "a.csv"
        with ray_score.score_on_ray(detector, str(scene.detector), listed, out, batch_size=batch_size):
            draw(tmp_path / "images", 1, 9)
    (first, before), (second, after), (third, _) = asked
    assert first == second != third, "what the detector sees is part of the request"
    same = [old.name == new.name for old, new in zip(before, after)]
    assert same == [False, True, True], "only the window with the picture that changed is another"
    assert sum(part.images for part in before) == 40


def test_a_worker_says_what_is_wrong(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # put back afterwards: a worker goes where the run started
    request = ray_score.Request(str(scene.detector), "another", str(tmp_path), "cpu", 4, 1)
    failed = ray_score.PartScorer(request).prepare()
    assert isinstance(failed, ray_score.Failed) and "another detector" in failed.message
    elsewhere = ray_score.Request(str(scene.detector), "x", str(tmp_path), "cpu", 4, 1, str(tmp_path / "nowhere"))
    failed = ray_score.PartScorer(elsewhere).prepare()
    assert isinstance(failed, ray_score.Failed) and "Every machine of the cluster must see it" in failed.message


@needs_ray
def test_room_is_checked(command: Runner, scene: Scene, tmp_path: Path) -> None:
    base = ["score", scene.store, "--detector", scene.detector, "--out", tmp_path / "a.csv", "--ray", "local"]
    assert "this Ray has 2 CPU(s)" in command(*base, "--workers", 3).err
    assert "has a GPU" in command(*base, "--on", "cuda").err
    assert "give auto, cpu or cuda" in command(*base, "--on", "cuda:1").err
    assert not (tmp_path / "a.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fdr", "0.1"], "combined with --fdr"),
        (["--report", "a.html"], "combined with --report"),
        (["--keep", "0.9"], "combined with --keep"),
        (["--json"], "combined with --json"),
        (["--classes", "a,b"], "combined with --classes"),
        (["--score", "mcm"], "combined with --score"),
        (["--id", "known"], "combined with --id"),
        (["--ray=nowhere"], "--ray 'nowhere'"),
    ],
)
def test_what_does_not_go_together(
    command: Runner, scene: Scene, tmp_path: Path, arguments: list[str], words: str
) -> None:
    result = command(
        "score", scene.store, "--detector", scene.detector, "--out", tmp_path / "a.csv", "--ray", "local", *arguments
    )
    assert result.code == 2 and words in " ".join(result.err.split())


def test_what_it_cannot_do_without(command: Runner, scene: Scene, tmp_path: Path) -> None:
    assert "needs --detector" in command("score", scene.store, "--out", tmp_path / "a.csv", "--ray", "local").err
    base = ["score", scene.store, "--detector", scene.detector]
    assert "needs --out" in command(*base, "--ray", "local").err
    assert "needs --out" in command(*base, "--ray", "local", "--out", tmp_path / "fiftyone").err
    assert "--workers needs --ray" in command(*base, "--workers", 2).err
    both_stores = command(
        "score", scene.store, scene.images, "--detector", scene.detector, "--ray", "local", "--out", "a.csv"
    )
    assert both_stores.code == 2 and "single feature store" in both_stores.err


def test_without_ray_the_line_to_install_it_is_told(
    command: Runner, scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = command("score", scene.store, "--detector", scene.detector, "--out", tmp_path / "a.csv", "--ray", "local")
    assert result.code == 2 and "pip install 'deltaenergy[ray]'" in result.err
    assert list(tmp_path.iterdir()) == []


def test_an_address_is_needed(command: Runner, scene: Scene, tmp_path: Path) -> None:
    base = ["score", scene.store, "--detector", scene.detector, "--out", tmp_path / "a.csv"]
    assert command(*base, "--ray").code == 2
    assert "'photos'" in command(*base, "--ray", "photos").err


def test_two_runs_at_once_are_refused(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    detector = de.Detector.load(scene.detector)
    monkeypatch.setattr(ray_score, "_fill", lambda *_: None)

    def run() -> None:
        with ray_score.score_on_ray(detector, str(scene.detector), str(scene.store), tmp_path / "a.csv"):
            if threading.current_thread() is threading.main_thread():
                with ThreadPoolExecutor(1) as other, pytest.raises(InputError, match="Another run"):
                    other.submit(run).result()  # locks are a thread's own

    run()
    assert list(tmp_path.iterdir()) == []
