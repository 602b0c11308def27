"""`load_model` says what it tried, and never loads another model than the one asked for."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import deltaenergy as de
from deltaenergy.core.registry import Registry
from deltaenergy.errors import ArtifactError, InputError, ModelUnavailableError
from tests.checkpoints import write_clip
from tests.colours import ColourModel


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty hub cache, and sockets that refuse."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("network is unreachable")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.usefixtures("no_network")
def test_without_network_and_cache_the_error_names_what_was_tried_and_both_ways_out() -> None:
    with pytest.raises(ModelUnavailableError) as caught:
        de.load_model("openai/clip-vit-base-patch16")
    message = str(caught.value)
    assert message.count("tried:") == 3
    assert "hf download openai/clip-vit-base-patch16" in message
    assert "pass its path" in message


@pytest.mark.usefixtures("no_network")
def test_a_misspelt_hub_name_suggests_the_near_one() -> None:
    with pytest.raises(ModelUnavailableError, match="clip-vit-base-patch16"):
        de.load_model("openai/clip-vit-base-pach16")


def test_a_cached_hub_model_loads_without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache layout is the hub's own: models--owner--name/{refs,snapshots}."""
    root = tmp_path / "hub" / "models--someone--tiny"
    snapshot = write_clip(root / "snapshots" / ("0" * 40))
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    model = de.load_model("someone/tiny")
    assert model.name == "someone/tiny"
    assert model.fingerprint == de.load_model(snapshot).fingerprint


@pytest.mark.parametrize("name", ["lit", "./nowhere", "/nowhere/at/all"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="neither a folder nor a"):
        de.load_model(name)


def test_a_near_name_is_suggested() -> None:
    with pytest.raises(InputError, match="Did you mean 'lite'"):
        de.load_model("lit")


def test_folders_that_are_no_clip_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no config\.json"):
        de.load_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ArtifactError, match="cannot be read as JSON"):
        de.load_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(ArtifactError, match="type 'bert'"):
        de.load_model(tmp_path)


@pytest.mark.usefixtures("no_network")
def test_without_download_the_error_says_how_to_get_it() -> None:
    with pytest.raises(ModelUnavailableError) as caught:
        de.load_model("openai/clip-vit-base-patch16", download=False)
    message = str(caught.value)
    assert "not in the local cache" in message and "no model of that name" in message
    assert "load_model('openai/clip-vit-base-patch16')" in message and "pass the loaded model" in message


def hub_model(cache: Path, name: str = "someone/tiny", revision: str = "main", commit: str = "0" * 40) -> Path:
    """A model in the layout of the hub's cache, where files are links to blobs; returns its snapshot."""
    root = cache / f"models--{name.replace('/', '--')}"
    snapshot = write_clip(root / "snapshots" / commit)
    (root / "blobs").mkdir(exist_ok=True)
    for file in list(snapshot.iterdir()):
        blob = root / "blobs" / f"{commit[:4]}-{file.name}"
        file.rename(blob)
        file.symlink_to(Path("..") / ".." / "blobs" / blob.name)
    ref = root / "refs" / revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(commit)
    return snapshot


@pytest.mark.usefixtures("no_network")
def test_a_cached_model_needs_no_download(tmp_path: Path) -> None:
    snapshot = hub_model(tmp_path / "hub")
    assert de.load_model("someone/tiny", download=False).fingerprint == de.load_model(snapshot).fingerprint


@pytest.mark.usefixtures("no_network")
def test_a_part_of_a_model_in_the_cache_is_not_a_model(tmp_path: Path) -> None:
    snapshot = hub_model(tmp_path / "hub")
    (snapshot / "tokenizer.json").unlink()
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(ModelUnavailableError, match="weights, tokenizer"):
        de.load_model("someone/tiny", download=False)


def test_weights_that_the_hub_converted_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the main branch holds pickles only: the open pull request of the hub's converter, and no other's."""
    cache = tmp_path / "hub"
    main = hub_model(cache)
    (main / "model.safetensors").unlink()
    (main / "pytorch_model.bin").write_bytes(b"a pickle")
    asked: list[str] = []

    def snapshot_download(name: str, *, revision: str, local_files_only: bool, allow_patterns: list[str]) -> str:
        assert name == "someone/tiny" and not any(pattern.endswith(".bin") for pattern in allow_patterns)
        if not local_files_only:
            asked.append(revision)
        if revision == "main":
            return str(main)
        if local_files_only:
            raise FileNotFoundError(revision)
        return str(hub_model(cache, revision=revision, commit="1" * 40))

    def discussions(self: object, name: str, **_: object) -> list[SimpleNamespace]:
        offers = [(3, "someone", "open"), (4, "SFconvertbot", "closed"), (5, "SFconvertbot", "open")]
        return [SimpleNamespace(num=num, author=author, status=status) for num, author, status in offers]

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    monkeypatch.setattr("huggingface_hub.HfApi.get_repo_discussions", discussions)
    model = de.load_model("someone/tiny")
    assert asked == ["main", "refs/pr/5"]
    monkeypatch.undo()
    # And the next time from the cache.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    assert de.load_model("someone/tiny", download=False).fingerprint == model.fingerprint


@pytest.mark.usefixtures("no_network")
def test_a_detector_that_names_a_hub_model_downloads_nothing(
    tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_model(tmp_path / "hub")
    model = de.load_model("someone/tiny")
    de.Detector(de.ZeroShotClassifier(model, ["dog", "cat"]), "mcm").calibrate(photos).save(tmp_path / "detector")
    de.Detector.load(tmp_path / "detector")
    (tmp_path / "hub").rename(tmp_path / "gone")

    def refuse(*_: object, local_files_only: bool, **__: object) -> str:
        assert local_files_only, "a download was tried"
        raise FileNotFoundError("not cached")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(ModelUnavailableError, match=r"(?s)'someone/tiny'.*download"):
        de.Detector.load(tmp_path / "detector")
    de.Detector.load(tmp_path / "detector", model=model)


@pytest.mark.parametrize("device", ["gpu7", "foo", "cuda:99", "cuda:-1", "meta", "", "cpu:x", "mps"])
def test_unknown_devices_are_refused(tiny_clip_folder: Path, device: str) -> None:
    with pytest.raises(InputError, match=f"`device` '{device}'.* cpu"):
        de.load_model(tiny_clip_folder, device=device)


@pytest.mark.parametrize("dtype", ["float61", torch.int64, torch.complex64, "auto "])
def test_unknown_precisions_are_refused(tiny_clip_folder: Path, dtype: Any) -> None:
    with pytest.raises(InputError, match=f"Unknown dtype '{dtype}'"):
        de.load_model(tiny_clip_folder, dtype=dtype)


def test_models_of_other_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    registry: Registry[Any] = Registry("model")
    monkeypatch.setattr("deltaenergy.models.loading.load.MODELS", registry)
    registry.add("colours", lambda device, dtype: ColourModel())
    registry.add("nothing", lambda device, dtype: de.PrecomputedModel(3))
    assert isinstance(de.load_model("colours"), ColourModel)
    with pytest.raises(InputError, match=r"Did you mean 'colours'"):
        de.load_model("colour")
    with pytest.raises(InputError, match=r"'nothing'.*PrecomputedModel"):
        de.load_model("nothing")
    monkeypatch.chdir(tmp_path)
    write_clip(tmp_path / "colours")
    assert isinstance(de.load_model("colours"), ColourModel)
    assert de.load_model(Path("colours")).feature_dim == 16
