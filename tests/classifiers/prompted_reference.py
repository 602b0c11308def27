"""Prompted towers in double precision: transformers' own forward, with hooks that put learned vectors into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn


class Reference:
    """A double-precision copy of a checkpoint, read by transformers alone."""

    def __init__(self, folder: Any) -> None:
        from transformers import AutoTokenizer, CLIPModel

        self.clip: Any = CLIPModel.from_pretrained(folder).double().eval().requires_grad_(False)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.scale = float(self.clip.logit_scale.exp())

    def texts(
        self,
        names: Sequence[str],
        context: torch.Tensor,
        deep: torch.Tensor | None = None,
        between: str = "",
        *,
        raw: bool = False,
    ) -> torch.Tensor:
        """[start] context [between] [name] . [end] in 77 tokens; `deep[b − 1]` replaces the context before block b."""
        length = len(context)
        ids, ends = [], []
        for name in names:
            words = self.tokenizer(f"{between} {name}.", add_special_tokens=False)["input_ids"]
            row = [self.tokenizer.bos_token_id, *[0] * length, *words, self.tokenizer.eos_token_id]
            ends.append(len(row) - 1)
            ids.append(row + [self.tokenizer.eos_token_id] * (77 - len(row)))
        text = self.clip.text_model
        with ExitStack() as hooks:

            def put(block: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
                return lambda x: torch.cat([x[:, :1], block.expand(len(x), -1, -1), x[:, 1 + length :]], dim=1)

            _after(hooks, text.embeddings.token_embedding, put(context))
            for number, block in enumerate(() if deep is None else deep, start=1):
                _before(hooks, text.encoder.layers[number], put(block))
            hidden = text(input_ids=torch.tensor(ids)).last_hidden_state
        vectors: torch.Tensor = self.clip.text_projection(hidden[torch.arange(len(ids)), ends])
        return vectors if raw else nn.functional.normalize(vectors, dim=-1)

    def features(self, pixels: torch.Tensor, tokens: torch.Tensor | None = None, *, raw: bool = False) -> torch.Tensor:
        """Image features with tokens (J, n, H) at the end of the first J blocks' inputs."""
        vision = self.clip.vision_model
        with ExitStack() as hooks:
            if tokens is not None:
                count = tokens.shape[1]

                def put(block: torch.Tensor, behind: int) -> Callable[[torch.Tensor], torch.Tensor]:
                    return lambda x: torch.cat([x[:, : x.shape[1] - behind], block.expand(len(x), -1, -1)], dim=1)

                _after(hooks, vision.embeddings, put(tokens[0], 0))
                for number, block in enumerate(tokens[1:], start=1):
                    _before(hooks, vision.encoder.layers[number], put(block, count))
            state = vision(pixel_values=pixels.double()).pooler_output
        vectors: torch.Tensor = self.clip.visual_projection(state)
        return vectors if raw else nn.functional.normalize(vectors, dim=-1)


def _after(hooks: ExitStack, module: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    hooks.callback(module.register_forward_hook(lambda _, __, output: change(output)).remove)


def _before(hooks: ExitStack, module: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def changed(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (change(inputs[0]), *inputs[1:])

    hooks.callback(module.register_forward_pre_hook(changed).remove)


def double(classifier: nn.Module) -> dict[str, torch.Tensor]:
    """The parameters as double-precision leaves."""
    return {name: p.detach().double().requires_grad_() for name, p in classifier.named_parameters()}
