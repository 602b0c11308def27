"""Class prompts with learned parts, through a frozen text tower.

A prompt is [start] v_1 … v_M [words] [name] . [end] in CLIP, and framed as the tower's tokenizer frames any text in
others, with the context v learned (Zhou et al., CoOp, IJCV 2022), fixed
words between it and the name as in MaPLe, and the name given as words or, as in ID-like, as learned embeddings. With
deep contexts (MaPLe, PromptSRC) the states of the context are also replaced before each of the next blocks.

All classes share [start] v_1 … v_M [words], which is therefore run once (see `causal_text.py`). Where no prefix is
shared (a context per class, the name in front or in the middle, a tower without causal mask) whole prompts are run,
padded as the tower was trained. Contexts of unequal length are several `LearnedPrompts`.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch.utils.checkpoint import checkpoint

from deltaenergy.errors import InputError
from deltaenergy.models.towers.blocks import ACTIVATION_BUDGET, bytes_per_token
from deltaenergy.models.towers.causal_text import CausalTextTower
from deltaenergy.models.towers.text import TextTower

NamePosition = Literal["end", "front", "middle"]
# Placeholder among a prompt's token ids for a name given as an embedding.
_GIVEN = -1


@dataclass(frozen=True)
class _Prompt:
    """`before` v_1 … v_split `middle` v_{split+1} … v_M `after`, as token ids."""

    before: list[int]
    split: int
    middle: list[int]
    after: list[int]

    def length(self, context_length: int) -> int:
        return len(self.before) + context_length + len(self.middle) + len(self.after)

    def places(self, context_length: int) -> list[int]:
        """The positions of the context."""
        first = len(self.before)
        return [first + i + (len(self.middle) if i >= self.split else 0) for i in range(context_length)]


class LearnedPrompts:
    """Class prompts around a learned context.

    Args:
        tower: a model's text tower.
        names: class names; or how many there are, if they come with each call as embeddings.
        context_length: M, the number of context vectors.
        name_position: where the class name is: after the context, before it, or in its middle.
        class_specific: whether every class has its own context.
        full_stop: whether a full stop follows.
        between: fixed words between the context and the name.
        activation_budget: bytes of activations to keep for the backward pass before classes are run in chunks.
    """

    def __init__(
        self,
        tower: TextTower,
        names: Sequence[str] | int,
        context_length: int,
        *,
        name_position: NamePosition = "end",
        class_specific: bool = False,
        full_stop: bool = True,
        between: str = "",
        activation_budget: int = ACTIVATION_BUDGET,
    ) -> None:
        if name_position not in ("end", "front", "middle"):
            raise InputError(f"name_position must be 'end', 'front' or 'middle', got {name_position!r}.")
        if between and name_position != "end":
            raise InputError(f"between {between!r} needs the name behind the context, name_position 'end'.")
        self.tower = tower
        self.context_length = context_length
        self.name_position = name_position
        self.class_specific = class_specific
        self.shares_prefix = tower.causal and not class_specific and name_position == "end"
        per_token = bytes_per_token(tower.blocks, tower.width, tower.embedding_weight.element_size())
        self._bytes_per_token = per_token
        self._tokens_at_once = max(1, activation_budget // per_token)
        (words,) = tower.words([between])
        room = tower.max_length - sum(map(len, tower.frame)) - context_length - len(words)
        if room < 1 + full_stop:
            raise InputError(
                f"context_length {context_length} leaves no room for class names: the text encoder takes "
                f"{tower.max_length} tokens. Use a shorter context."
            )
        self._given = names if isinstance(names, int) else None
        if isinstance(names, int):
            stop = tower.words(["."])[0] if full_stop else []
            named = [([_GIVEN, *stop], 1)] * names
        else:
            named = _word_names(tower, names, full_stop, room)
        self._prompts = [_arrange(name, tower.frame, words, context_length, name_position) for name in named]

    def __call__(
        self, context: torch.Tensor, *, names: torch.Tensor | None = None, deep: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Context (M, W), or (K, M, W) if class-specific -> unit text features (K, D).

        Args:
            context: embeddings of the context, before positions are added.
            names: embeddings (K, 1, W) of the names, for prompts that were given their number.
            deep: states (J − 1, M, W) that replace those of the context before the blocks 1 … J − 1.
        """
        expected = (len(self._prompts), self.context_length) if self.class_specific else (self.context_length,)
        if context.shape != (*expected, self.tower.width):
            raise ValueError(f"context has shape {tuple(context.shape)}, expected {(*expected, self.tower.width)}")
        if self.shares_prefix:
            return self.each(context[None], names=names, deep=deep)[0]
        names, deep = self._cast_names(names), self._cast_deep(deep)
        return self._run_whole(context.to(self.tower.embedding_weight), names, deep)

    def each(
        self, contexts: torch.Tensor, *, names: torch.Tensor | None = None, deep: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Several shared contexts (B, M, W) -> unit text features (B, K, D): a context per image, or an ensemble.

        `names` and `deep` are the same for all.
        """
        if self.class_specific:
            raise ValueError("each() needs shared contexts; these prompts have one per class")
        if not self.shares_prefix:
            return torch.stack([self(context, names=names, deep=deep) for context in contexts])
        names, deep = self._cast_names(names), self._cast_deep(deep)
        common = self._prompts[0]
        embedded = [self.tower.embed(common.before), contexts.to(self.tower.embedding_weight)]
        embedded.append(self.tower.embed(common.middle))
        tower = self._causal_tower()
        prefix = tower.run_prefix(
            torch.cat([part.expand(len(contexts), -1, -1) for part in embedded], dim=1),
            deep,
            slice(len(common.before), len(common.before) + self.context_length),
        )
        flat = [tensor for pair in prefix for tensor in pair]

        def run(classes: list[int]) -> Callable[..., torch.Tensor]:
            after = [self._prompts[index].after for index in classes]
            groups = [(len(list(same)), length) for length, same in itertools.groupby(map(len, after))]
            ids = [token for tokens in after for token in tokens]

            def behind(*keys_values: torch.Tensor) -> torch.Tensor:
                pairs = list(zip(keys_values[::2], keys_values[1::2]))
                return tower.run_behind(pairs, self._embed(ids, classes, names), groups)

            return behind

        lengths = [len(prompt.after) for prompt in self._prompts]
        chunks = _chunks_by_length(lengths, self._tokens_at_once // max(1, len(contexts)))
        return _in_chunks([(run(classes), flat, classes) for classes in chunks], dim=1)

    def tokens(self) -> int:
        """Number of tokens through the tower, for one context or one of each class."""
        if self.shares_prefix:
            common = self._prompts[0]
            prefix = len(common.before) + self.context_length + len(common.middle)
            return prefix + sum(len(prompt.after) for prompt in self._prompts)
        return sum(self._run_lengths())

    def recomputes(self) -> bool:
        """Whether the backward pass of a run computes activations again to save memory."""
        return self.tokens() > self._tokens_at_once

    def activation_bytes(self) -> int:
        """About how much autograd keeps of a run at once."""
        return self._bytes_per_token * min(self.tokens(), self._tokens_at_once)

    def _run_whole(self, context: torch.Tensor, names: torch.Tensor | None, deep: torch.Tensor | None) -> torch.Tensor:
        """Unit features (K, D) from whole prompts."""

        def run(classes: list[int]) -> Callable[[torch.Tensor], torch.Tensor]:
            return lambda context: self._run_prompts(classes, context, names, deep)

        chunks = _chunks_by_length(self._run_lengths(), self._tokens_at_once)
        return _in_chunks([(run(classes), [context], classes) for classes in chunks], dim=0)

    def _run_prompts(
        self, classes: list[int], context: torch.Tensor, names: torch.Tensor | None, deep: torch.Tensor | None
    ) -> torch.Tensor:
        rows = []
        for index in classes:
            prompt = self._prompts[index]
            own = context[index] if self.class_specific else context
            before, middle, after = (
                self._embed(ids, [index], names) for ids in (prompt.before, prompt.middle, prompt.after)
            )
            rows.append(torch.cat([before, own[: prompt.split], middle, own[prompt.split :], after]))
        device = self.tower.device
        places = [self._prompts[index].places(self.context_length) for index in classes]
        return self.tower.run_whole(
            torch.nn.utils.rnn.pad_sequence(rows, batch_first=True),
            torch.tensor([len(row) for row in rows], device=device),
            deep=deep,
            places=torch.tensor(places, dtype=torch.long, device=device),
        )

    def _run_lengths(self) -> list[int]:
        """Tokens that are computed for each whole prompt."""
        return [self.tower.run_length(prompt.length(self.context_length)) for prompt in self._prompts]

    def _causal_tower(self) -> CausalTextTower:
        assert isinstance(self.tower, CausalTextTower)
        return self.tower

    def _embed(self, ids: list[int], classes: list[int], names: torch.Tensor | None) -> torch.Tensor:
        """Token embeddings (tokens, W), with the names of `classes` inserted."""
        if names is None or _GIVEN not in ids:
            return self.tower.embed(ids)
        embedded = self.tower.embed([max(token, 0) for token in ids])
        places = [place for place, token in enumerate(ids) if token == _GIVEN]
        where = (torch.tensor(places, device=embedded.device),)
        return embedded.index_put(where, names[classes].flatten(0, 1))

    def _cast_names(self, names: torch.Tensor | None) -> torch.Tensor | None:
        assert (names is None) == (self._given is None), "names belong to prompts that were told their number"
        if names is None:
            return None
        assert names.shape == (self._given, 1, self.tower.width)
        return names.to(self.tower.embedding_weight)

    def _cast_deep(self, deep: torch.Tensor | None) -> torch.Tensor | None:
        if deep is None:
            return None
        assert deep.ndim == 3 and deep.shape[1:] == (self.context_length, self.tower.width)
        if len(deep) >= self.tower.blocks:
            raise InputError(
                f"deep contexts are given for {1 + len(deep)} blocks, but the text encoder has {self.tower.blocks}. "
                f"Use a depth of at most {self.tower.blocks}."
            )
        return deep.to(self.tower.embedding_weight)


def _word_names(tower: TextTower, names: Sequence[str], full_stop: bool, room: int) -> list[tuple[list[int], int]]:
    """Token ids of each name and its full stop, and how many belong to the name; long names are cut, with a warning."""
    rows = tower.words([f"{name}." for name in names] if full_stop else names)
    found = []
    for name, words, alone in zip(names, rows, tower.words(names)):
        if len(words) > room:
            warnings.warn(f"The class name {name[:60]!r} was cut to {room} tokens.", stacklevel=3)
        # The full stop follows the name; only the name tells where it ends.
        kept = words[:room]
        found.append((kept, min(len(alone), len(kept))))
    return found


def _arrange(
    name: tuple[list[int], int],
    frame: tuple[list[int], list[int]],
    words: list[int],
    context_length: int,
    position: NamePosition,
) -> _Prompt:
    """The prompt of one class."""
    (ids, named), (before, end) = name, frame
    if position == "end":
        return _Prompt(before, context_length, words, [*ids, *end])
    if position == "front":
        return _Prompt([*before, *ids[:named]], context_length, [], [*ids[named:], *end])
    return _Prompt(before, context_length // 2, ids[:named], [*ids[named:], *end])


def _chunks_by_length(lengths: list[int], tokens_at_once: int) -> Iterator[list[int]]:
    """Positions by ascending length, in runs of at most `tokens_at_once` tokens (but at least one position)."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    start = total = 0
    for end, index in enumerate(order):
        if end > start and total + lengths[index] > tokens_at_once:
            yield order[start:end]
            start, total = end, 0
        total += lengths[index]
    yield order[start:]


def _in_chunks(
    chunks: list[tuple[Callable[..., torch.Tensor], list[torch.Tensor], list[int]]], dim: int
) -> torch.Tensor:
    """Run the chunks, recomputing all but one chunk's activations in the backward pass; classes in order."""
    order = [index for _, _, classes in chunks for index in classes]
    if len(chunks) == 1 or not torch.is_grad_enabled():
        results = [function(*inputs) for function, inputs, _ in chunks]
    else:
        results = [checkpoint(function, *inputs, use_reentrant=False) for function, inputs, _ in chunks]
    joined = results[0] if len(results) == 1 else torch.cat(results, dim=dim)
    back = torch.tensor(order, device=joined.device).argsort()
    return joined.index_select(dim, back)
