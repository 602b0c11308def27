"""A checkpoint's tokenizer must be the one of its text tower."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, CLIPTokenizer

import deltaenergy as de
from deltaenergy.errors import ArtifactError
from deltaenergy.models.loading.tokenizing import tokenizer_digest
from tests.checkpoints import WORDS, write_clip


@pytest.fixture
def folder(tiny_clip_folder: Path, tmp_path: Path) -> Path:
    """A copy of the tiny checkpoint, to be changed."""
    return Path(shutil.copytree(tiny_clip_folder, tmp_path / "clip"))


def put(folder: Path, vocabulary: dict[str, int], merges: list[tuple[str, str]] | None = None, **options: Any) -> None:
    (folder / "tokenizer.json").unlink()
    CLIPTokenizer(vocab=vocabulary, merges=merges or [], model_max_length=77, **options).save_pretrained(folder)


def change(folder: Path, **parts: Any) -> None:
    """Replace parts of tokenizer.json, and have it taken as it is: CLIPTokenizer brings most parts itself."""
    content = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**content, **parts}))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def vocabulary(folder: Path) -> dict[str, int]:
    return dict(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])


def assert_refused(folder: Path, message: str) -> None:
    with pytest.raises(ArtifactError, match=f"tokenizer.*: {message}"):
        de.load_model(folder)


def test_more_tokens_than_embeddings(folder: Path) -> None:
    put(folder, {**vocabulary(folder), "zebra</w>": 900})
    assert_refused(folder, "its largest token is number 900, but the encoder has embeddings for 536")


def test_another_start_or_end_token(folder: Path) -> None:
    known = vocabulary(folder)
    swapped = {**known, "<|startoftext|>": known["<|endoftext|>"], "<|endoftext|>": known["<|startoftext|>"]}
    put(folder, swapped)
    assert_refused(folder, "its start token is number 535, config.json says 534")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["bos_token_id"] = 535
    (folder / "config.json").write_text(json.dumps(config))
    assert_refused(folder, "its end token is number 534, config.json says 535")


def test_the_older_end_token_is_the_largest(tmp_path: Path) -> None:
    """Older configs say 2, and the tower pools at the largest id: then it must be the end token's."""
    folder = write_clip(tmp_path / "legacy", legacy_eos=True)
    assert de.load_model(folder).encode_texts("dog").shape == (1, 16)
    known = vocabulary(folder)
    last = known["<|endoftext|>"]
    put(
        folder,
        {**known, "<|endoftext|>": 7, "car</w>": last, sorted(known, key=known.__getitem__)[7]: known["car</w>"]},
    )
    assert_refused(folder, f"its end token is number 7, but the encoder pools at the largest, which is {last}")


def test_words_that_it_does_not_know(folder: Path) -> None:
    """An empty vocabulary answers every text with the same tokens, and every score with the same number."""
    known = vocabulary(folder)
    put(folder, {token: known[token] for token in ("<|startoftext|>", "<|endoftext|>")})
    assert_refused(folder, "it knows no tokens for 'dog'")


def test_different_words_with_the_same_tokens(folder: Path) -> None:
    change(folder, normalizer={"type": "Replace", "pattern": {"Regex": "[a-z]+"}, "content": "a"})
    assert_refused(folder, "'dog' and 'cat' have the same tokens")


def test_texts_without_start_and_end(folder: Path) -> None:
    change(folder, post_processor=None)
    assert_refused(folder, "it does not put 'dog' between start and end token")


def test_a_tokenizer_of_another_kind(folder: Path) -> None:
    from tokenizers import Tokenizer, models

    words = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "dog": 3}
    Tokenizer(models.WordLevel(words, unk_token="[UNK]")).save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "BertTokenizer", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ArtifactError, match="the tokenizer"):
        de.load_model(folder)


def test_code_that_a_tokenizer_brings_is_not_run(folder: Path) -> None:
    (folder / "evil.py").write_text("raise SystemExit('the code was run')")
    settings = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ArtifactError, match="the tokenizer"):
        de.load_model(folder)


def test_both_forms_of_files_are_the_same_tokenizer(folder: Path, tiny_clip: de.Model) -> None:
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    assert de.load_model(folder).fingerprint == tiny_clip.fingerprint


def test_the_digest_tells_tokenizers_apart(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    model, added = content["model"], content["added_tokens"]
    known, (dog, cat) = model["vocab"], (f"{word}</w>" for word in WORDS[3:5])
    changes: list[dict[str, Any]] = [
        {},
        {"model": {**model, "merges": model["merges"][:-1]}},
        {"model": {**model, "vocab": {**known, dog: known[cat], cat: known[dog]}}},
        {"model": model, "normalizer": None},
        {"added_tokens": [*added, {**added[-1], "id": known["x"], "content": "x"}]},
    ]
    digests = []
    for parts in changes:
        change(folder, **parts)
        digests.append(tokenizer_digest(AutoTokenizer.from_pretrained(folder)))
    assert len(set(digests)) == len(changes)


def test_the_digest_is_part_of_the_fingerprint(folder: Path, tiny_clip: de.Model) -> None:
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    change(folder, model={**model, "merges": model["merges"][:-1]})
    assert de.load_model(folder).fingerprint != tiny_clip.fingerprint
