"""A checkpoint's tokenizer, and whether it is the one that the text tower was trained with, as far as can be seen."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deltaenergy.errors import ArtifactError

# Either of these is a whole tokenizer.
_FILES = (("tokenizer.json",), ("vocab.json", "merges.txt"))
# Different words, whose tokens must differ and stand between start and end.
_WORDS = ("dog", "cat", "a photo of a zebra.", "x", "ship 7", "blue car", "red car")
# What a change of case, accents, spaces or punctuation would show in.
_MARKS = ("Dog", "Zürich", "it's 7!", "naïve  café", "日本", "a,b;c")
# Checkpoints from before 2023 say these, whatever their tokens are; transformers then pools at the largest id.
_LEGACY_START, _LEGACY_END = 0, 2


def has_tokenizer(folder: Path) -> bool:
    """Whether the folder holds the files of a tokenizer."""
    return any(all((folder / name).is_file() for name in files) for files in _FILES)


def load_tokenizer(folder: Path, text_config: Any, kind: str = "AutoTokenizer") -> Any:
    """The tokenizer of a folder, of transformers' class `kind`, if it fits the tower that `text_config` describes."""
    if not has_tokenizer(folder):
        raise ArtifactError(
            f"{folder} holds no tokenizer (tokenizer.json, or vocab.json and merges.txt). Without its own one the text "
            "tower cannot read: copy these files from where the model came from."
        )
    import transformers

    with _refusing(f"{folder}: the tokenizer cannot be loaded"):
        loader: Any = getattr(transformers, kind)
        tokenizer = loader.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    with _refusing(f"{folder}: the tokenizer fails on ordinary words"):
        wrong = _misfit(tokenizer, text_config)
    if wrong:
        raise ArtifactError(
            f"{folder}: the tokenizer is not that of this text tower: {wrong}. Copy the tokenizer files from where the "
            "model came from."
        )
    return tokenizer


def tokenizer_digest(tokenizer: Any) -> str:
    """Hash of the vocabulary, of the merges where they can be seen, and of what becomes of some texts."""
    # Added tokens are found within words, too.
    known, added = sorted(tokenizer.get_vocab().items()), sorted(tokenizer.get_added_vocab().items())
    parts: list[Any] = [known, added, tokenizer(list(_MARKS))["input_ids"]]
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        merges = json.loads(backend.to_str())["model"].get("merges", [])
        # Pairs, or in older files one text with a space.
        parts.append([pair if isinstance(pair, str) else " ".join(pair) for pair in merges])
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def _misfit(tokenizer: Any, text_config: Any) -> str:
    """What is wrong, or nothing."""
    start, end, rows = tokenizer.bos_token_id, tokenizer.eos_token_id, int(text_config.vocab_size)
    ids = tokenizer.get_vocab().values()
    largest = max(ids, default=0)
    if largest >= rows:
        return f"its largest token is number {largest}, but the tower has embeddings for {rows}"
    if start is None or end is None:
        return "it has no start or no end token"
    if text_config.bos_token_id not in (start, _LEGACY_START, None):
        return f"its start token is number {start}, config.json says {text_config.bos_token_id}"
    if text_config.eos_token_id not in (end, _LEGACY_END):
        return f"its end token is number {end}, config.json says {text_config.eos_token_id}"
    if text_config.eos_token_id == _LEGACY_END and end not in (_LEGACY_END, largest):
        return f"its end token is number {end}, but the tower pools at the largest, which is {largest}"
    found = [tuple(row) for row in tokenizer(list(_WORDS), add_special_tokens=True, truncation=False)["input_ids"]]
    for word, row in zip(_WORDS, found):
        if len(row) < 2 or row[0] != start or row[-1] != end:
            return f"it does not put {word!r} between start and end token"
        if len(row) == 2 or {start, end} & {*row[1:-1]}:
            return f"it knows no tokens for {word!r}"
    for number, row in enumerate(found):
        if row in found[:number]:
            return f"{_WORDS[found.index(row)]!r} and {_WORDS[number]!r} have the same tokens"
    return ""


@contextlib.contextmanager
def _refusing(what: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        # A panic of the tokenizers library is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ArtifactError(f"{what}: {reason}") from error
