"""A checkpoint's tokenizer, and checks that it matches the text tower."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltaenergy.errors import ArtifactError, first_line

# Either of these is a whole tokenizer.
_FILES = (
    ("tokenizer.json",), ("vocab.json", "merges.txt"), ("vocab.txt",), ("spiece.model",), ("tokenizer.model",),
    ("sentencepiece.bpe.model",),
)  # fmt: skip
TOKENIZER_FILES = (
    *(name for files in _FILES for name in files),
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip
# Different words, whose tokens must differ and be between start and end.
_WORDS = ("dog", "cat", "a photo of a zebra.", "x", "ship 7", "blue car", "red car")
# Text that shows a change of case, accents, spaces or punctuation.
_MARKS = ("Dog", "Zürich", "it's 7!", "naïve  café", "日本", "a,b;c")
# Ids in checkpoints from before 2023, whatever their tokens are; transformers then pools at the largest id.
_LEGACY_START, _LEGACY_END = 0, 2


def has_tokenizer(folder: Path) -> bool:
    """Whether the folder has the files of a tokenizer."""
    return any(all((folder / name).is_file() for name in files) for files in _FILES)


@dataclass(frozen=True)
class Framing:
    """What a family's tokenizer puts around the words.

    Attributes:
        start, end: names of the first and the last token; no start for some.
        configured: whether config.json names both tokens correctly, to compare with the tokenizer.
        legacy: whether config.json may have the ids of checkpoints from before 2023.
        padded: whether the model sees padding, or must distinguish it.
    """

    start: str | None = "bos_token_id"
    end: str = "eos_token_id"
    configured: bool = True
    legacy: bool = True
    padded: bool = False


CLIP_FRAMING = Framing()


class CleaningTokenizer:
    """A tokenizer that cleans texts first; otherwise unchanged."""

    def __init__(self, tokenizer: Any, clean: Callable[[str], str]) -> None:
        self._tokenizer = tokenizer
        self._clean = clean

    def __call__(self, texts: Sequence[str], **options: Any) -> Any:
        return self._tokenizer([self._clean(text) for text in texts], **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copying looks up attributes that do not exist yet
            raise AttributeError(name)
        return getattr(self.__dict__["_tokenizer"], name)


def load_tokenizer(folder: Path, text_config: Any, kind: str = "AutoTokenizer", framing: Framing = CLIP_FRAMING) -> Any:
    """The tokenizer of a folder, of transformers' class `kind`, if it fits the tower that `text_config` describes."""
    import transformers

    check_tokenizer_files(folder)
    loader: Any = getattr(transformers, kind)
    with _refusing(f"{folder}: the tokenizer cannot be loaded"):
        tokenizer = loader.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    with _refusing(f"{folder}: the tokenizer fails on ordinary words"):
        wrong = _misfit(tokenizer, text_config, framing)
    if wrong:
        raise ArtifactError(
            f"{folder}: the tokenizer does not match this text encoder: {wrong}. Copy the tokenizer files from the "
            "original model folder."
        )
    return tokenizer


def check_tokenizer_files(folder: Path) -> None:
    """Raise `ArtifactError` unless the folder has the files of a tokenizer."""
    if not has_tokenizer(folder):
        raise ArtifactError(
            f"{folder} has no tokenizer (tokenizer.json, vocab.json and merges.txt, vocab.txt, or a sentencepiece "
            "model). Copy these files from the original model folder."
        )


def tokenizer_digest(tokenizer: Any) -> str:
    """Hash of the vocabulary, of the merges if available, and of the tokens of some texts."""
    # Added tokens are also found within words.
    known, added = sorted(tokenizer.get_vocab().items()), sorted(tokenizer.get_added_vocab().items())
    parts: list[Any] = [known, added, tokenizer(list(_MARKS))["input_ids"]]
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        model = json.loads(backend.to_str())["model"]
        # Pairs, or in older files one text with a space.
        parts.append([pair if isinstance(pair, str) else " ".join(pair) for pair in model.get("merges", [])])
        if model.get("type") == "Unigram":  # which splits words by the probability of each piece
            parts.append(model["vocab"])
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def _misfit(tokenizer: Any, text_config: Any, framing: Framing) -> str:
    """What is wrong, or empty."""
    start = None if framing.start is None else getattr(tokenizer, framing.start)
    end, rows = getattr(tokenizer, framing.end), int(text_config.vocab_size)
    ids = tokenizer.get_vocab().values()
    largest = max(ids, default=0)
    if largest >= rows:
        return f"its largest token is number {largest}, but the encoder has embeddings for {rows}"
    if (start is None and framing.start is not None) or end is None:
        return "it has no start or no end token"
    if framing.padded and tokenizer.pad_token_id is None:
        return "it has no padding token"
    if framing.configured:
        said_start, said_end = text_config.bos_token_id, text_config.eos_token_id
        if said_start not in (start, None) and not (framing.legacy and said_start == _LEGACY_START):
            return f"its start token is number {start}, config.json says {said_start}"
        if said_end != end and not (framing.legacy and said_end == _LEGACY_END):
            return f"its end token is number {end}, config.json says {said_end}"
        if framing.legacy and said_end == _LEGACY_END and end not in (_LEGACY_END, largest):
            return f"its end token is number {end}, but the encoder pools at the largest, which is {largest}"
    frame = {start, end} - {None}
    found = [tuple(row) for row in tokenizer(list(_WORDS), add_special_tokens=True, truncation=False)["input_ids"]]
    for word, row in zip(_WORDS, found):
        if len(row) < len(frame) or (start is not None and row[0] != start) or row[-1] != end:
            return f"it does not put {word!r} between start and end token"
        if len(row) == len(frame) or frame & {*row[len(frame) - 1 : -1]}:
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
        # A panic of the tokenizers library is not an Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ArtifactError(f"{what}: {first_line(error)}") from error
