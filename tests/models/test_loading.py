"""`load_model` says what it tried, and never loads another model than the one asked for."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

import deltaenergy as de
from deltaenergy.errors import ArtifactError, InputError, ModelUnavailableError
from tests.checkpoints import write_clip


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
    assert "give its path" in message


@pytest.mark.usefixtures("no_network")
def test_a_misspelt_hub_name_suggests_the_near_one() -> None:
    with pytest.raises(ModelUnavailableError, match="Did you mean 'openai/clip-vit-base-patch16'"):
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
    with pytest.raises(InputError, match="neither a folder nor a hub id"):
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


@pytest.mark.parametrize("missing", ["model.safetensors", "preprocessor_config.json"])
def test_an_incomplete_checkpoint_is_named(missing: str, tmp_path: Path) -> None:
    folder = write_clip(tmp_path / "model")
    (folder / missing).unlink()
    with pytest.raises(ArtifactError, match="cannot be loaded as a CLIP checkpoint"):
        de.load_model(folder)


def test_a_damaged_weight_file_is_named(tmp_path: Path) -> None:
    folder = write_clip(tmp_path / "model")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ArtifactError, match="cannot be loaded as a CLIP checkpoint"):
        de.load_model(folder)


def test_wrong_device_and_dtype_are_refused(tiny_clip_folder: Path) -> None:
    with pytest.raises(InputError, match="device 'gpu7'"):
        de.load_model(tiny_clip_folder, device="gpu7")
    with pytest.raises(InputError, match="Unknown dtype 'float61'"):
        de.load_model(tiny_clip_folder, dtype="float61")
