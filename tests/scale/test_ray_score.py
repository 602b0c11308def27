"""`score --ray`: the table of `score`, byte for byte; what is done is not done again, and what cannot be is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

import deltaenergy as de
from deltaenergy import source
from deltaenergy.data.streams import ImageStream
from deltaenergy.errors import InputError
from deltaenergy.scale import ray as scale_ray
from deltaenergy.scale import score_on_ray
from deltaenergy.scale.ray import Cluster
from deltaenergy.source import SourcePart
from deltaenergy.store.folder import LocalFolder
from tests.cli.runner import Result, Runner
from tests.clouds import S3Bucket
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
    monkeypatch.setattr(scale_ray, "WINDOW_BATCHES", 1)
    monkeypatch.chdir(scene.root)
    alone, shared = both(command, scene, Path("images"), tmp_path / "out", ".csv", "--on", "batch=4")
    assert alone.code == shared.code == 1 and alone.err.replace("alone", "shared") == shared.err
    text = (tmp_path / "out" / "shared.csv").read_text()
    assert text == (tmp_path / "out" / "alone.csv").read_text() and len(text.splitlines()) == 23


@needs_ray
def test_parts_that_are_there_are_not_computed_again(
    command: Runner, scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "verdicts.csv"
    computed: list[int] = []
    mapped, write = Cluster.map, scale_ray.write_table

    def counted(self: Any, rows: Any, *arguments: Any) -> Any:
        rows = list(rows)
        computed.extend([len(rows)] if rows else [])
        return mapped(self, rows, *arguments)

    def full(*_: Any) -> int:
        raise ZeroDivisionError("the disk is full")

    monkeypatch.setattr(Cluster, "map", counted)

    def run() -> scale_ray.RayScored:
        return score_on_ray(str(scene.store), scene.detector, out)

    monkeypatch.setattr(scale_ray, "write_table", full)
    with pytest.raises(ZeroDivisionError):
        run()
    (place,) = tmp_path.iterdir()
    assert place.name.startswith(".deltaenergy-verdicts.csv-") and len(list(place.iterdir())) == 5
    kept = {path: path.stat().st_mtime_ns for path in place.iterdir()}
    lost = sorted(kept)[2]
    lost.unlink()
    with pytest.raises(ZeroDivisionError):
        run()
    assert computed == [5, 1]
    assert {path: path.stat().st_mtime_ns for path in place.iterdir() if path != lost} == {
        path: time for path, time in kept.items() if path != lost
    }
    monkeypatch.setattr(scale_ray, "write_table", write)
    done = run()
    assert (done.counts.images, len(done.unreadable)) == (22, 1)
    assert computed == [5, 1] and list(tmp_path.iterdir()) == [out], "nothing was left to do, and the parts are gone"


def parts_of(images: Path, size: int) -> list[SourcePart]:
    return list(source.parts_of(de.image_stream(images), size))


def test_changed_images_have_other_parts(tmp_path: Path) -> None:
    images = draw(tmp_path / "images", 40, 1)
    before = parts_of(images, 16)
    assert [part.images for part in before] == [16, 16, 8]
    assert parts_of(images, 16) == before
    draw(tmp_path / "images", 1, 9)
    same = [old.version == new.version for old, new in zip(before, parts_of(images, 16))]
    assert same == [False, True, True], "only the part with the image that changed is another"


def test_images_in_memory_cannot_be_handed_out(scene: Scene) -> None:
    from PIL import Image

    stream = de.image_stream([Image.open(scene.images / "000.png")])
    with pytest.raises(InputError, match="'image 0'"):
        list(source.parts_of(stream, 4))


def test_the_driver_keeps_no_image(tmp_path: Path) -> None:
    """What it keeps of a part is its name: lists of images go to Ray one by one, as they are listed."""
    events: list[str] = []

    class Listening(Cluster):
        def __enter__(self) -> Cluster:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def map(self, rows: Any, *_: Any) -> Iterator[Any]:
            for row in rows:
                events.append(f"put {row['images']}")
            yield from ()

    def listed() -> Iterator[Any]:
        for item in de.image_stream(draw(tmp_path / "images", 12, 1)):
            events.append("list")
            yield item

    parts = source.parts_of(ImageStream(listed, unique=True), 4)
    names = scale_ray.score_parts(LocalFolder(tmp_path / "parts"), parts, Listening("local"), (), None)
    assert len(names) == 3
    assert events == (["list"] * 4 + ["put 4"]) * 3


def test_a_worker_says_what_is_wrong(scene: Scene, tmp_path: Path) -> None:
    files = {path.name: path.read_bytes() for path in scene.detector.iterdir()}
    actor = scale_ray.ScoreActor(files, 4, 1, str(tmp_path / "nowhere"), "cpu")
    answer = actor({"name": "x", "images": 1, "content": b""})
    assert answer["kind"] == "InputError" and str(tmp_path / "nowhere") in answer["error"]
    assert (answer["name"], answer["verdicts"]) == ("x", b"")


def test_what_is_wrong_is_said_before_anything_is_loaded(scene: Scene, tmp_path: Path) -> None:
    for images, detector, out, options, words in [
        (scene.store, None, tmp_path / "a.csv", {}, "`detector`"),
        (scene.store, tmp_path, None, {}, "`out`"),
        (scene.store, tmp_path, tmp_path / "a.txt", {}, "`out`"),
        (scene.store, tmp_path / "nowhere", tmp_path / "a.csv", {}, "nowhere"),
        (scene.store, tmp_path, tmp_path / "a.csv", {"top_k": 0}, "`top_k`"),
        (scene.store, tmp_path, tmp_path / "a.csv", {"on": "cuda:1"}, "auto, cpu or cuda"),
        (scene.store, tmp_path, tmp_path / "a.csv", {"ray": "nowhere"}, "`ray`"),
        (tmp_path / "nothing", tmp_path, tmp_path / "a.csv", {}, "nothing"),
        ([scene.store] * 2, tmp_path, tmp_path / "a.csv", {}, "one feature store"),
    ]:
        with pytest.raises(InputError, match=words):
            score_on_ray(images, detector, out, **options)
    assert list(tmp_path.iterdir()) == []


@needs_ray
def test_parts_and_table_are_at_a_url(
    command: Runner, scene: Scene, s3_bucket: S3Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = ["score", scene.store, "--detector", scene.detector]
    assert command(*base, "--out", tmp_path / "alone.csv").code == 1, "one image could not be read"
    shared = [*base, "--out", f"{s3_bucket.url}/out/v.csv", "--ray", "local"]

    def interrupted(*_: Any) -> int:
        raise KeyboardInterrupt

    def nothing_is_left(_: Cluster, rows: Iterator[Any], *__: Any) -> Iterator[Any]:
        assert list(rows) == []
        return iter(())

    with monkeypatch.context() as patch:
        patch.setattr(scale_ray, "write_table", interrupted)
        assert command(*shared).code == 130
    parts = s3_bucket.list()
    assert len(parts) == 5 and all(name.startswith("out/.deltaenergy-v.csv-") for name in parts)
    with monkeypatch.context() as patch:
        patch.setattr(Cluster, "map", nothing_is_left)
        assert command(*shared).code == 1
    assert s3_bucket.list() == ["out/v.csv"]
    assert s3_bucket.get("out/v.csv") == (tmp_path / "alone.csv").read_bytes()


@needs_ray
def test_room_is_checked(command: Runner, scene: Scene, tmp_path: Path) -> None:
    base = ["score", scene.store, "--detector", scene.detector, "--out", tmp_path / "a.csv", "--ray", "local"]
    assert "only 2 CPUs" in command(*base, "--workers", 3).err
    assert "has a GPU" in command(*base, "--on", "cuda").err
    assert "auto, cpu or cuda" in command(*base, "--on", "cuda:1").err
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
        "score", scene.store, scene.store, "--detector", scene.detector, "--ray", "local", "--out", "a.csv"
    )
    assert both_stores.code == 2 and "one feature store" in both_stores.err


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
    def score() -> Any:
        return score_on_ray(scene.store, scene.detector, tmp_path / "a.csv")

    def other(*_: Any) -> list[str]:
        with ThreadPoolExecutor(1) as pool, pytest.raises(InputError, match="Another run"):
            pool.submit(score).result()  # locks are a thread's own
        return []

    monkeypatch.setattr(scale_ray, "score_parts", other)
    score()
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
