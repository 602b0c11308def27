"""The text tower: a small causal transformer (transformers' CLIPTextModelWithProjection), taught the names' targets.

Loss of a prompt with unit output t and target v, E the 1,000 class vectors, V the targets of the batch:
    2 (1 - t.v) + KL(softmax(vE/T) || softmax(tE/T)) + KL(softmax(vV/T) || softmax(tV/T)) + 0.2 (1 - cos(Wh, teacher))
with h the tower's state before the projection and W thrown away after training. A fifth of the batches have up to 16
random vectors between the start token and the words, so that prompt learning starts from a tower that knows such.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax, normalize, scaled_dot_product_attention, softmax

from deltaenergy.files import read_tensors, write_tensors
from training.lite.joint import DIMENSIONS
from training.lite.prompts import Practice
from training.lite.targets import Names
from training.lite.tokens import END, START

WIDTH, LAYERS, HEADS, POSITIONS = 256, 3, 4, 77
TARGET_PART = 208  # coordinates of a token's embedding that start from its target, the others from the teacher
TEMPERATURE = 0.05
PREFIX_SHARE, LONGEST_PREFIX = 0.2, 16
BATCH, PEAK_RATE, WARM_UP = 384, 1.5e-3, 0.03
REFINING_STEPS, REFINING_RATE = 1000, 1e-3
TEACHER_SHARE = 0.2
LONGEST = 20  # tokens of a name or sentence; what follows is cut


def text_config(tokenizer: Tokenizer) -> dict[str, object]:
    """Settings of transformers' CLIPTextConfig."""
    end = tokenizer.token_to_id(END)
    return {
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "projection_dim": DIMENSIONS,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "max_position_embeddings": POSITIONS,
        "hidden_act": "gelu",
        "bos_token_id": tokenizer.token_to_id(START),
        "eos_token_id": end,
        "pad_token_id": end,
    }


def new_tower(tokenizer: Tokenizer) -> nn.Module:
    """An untrained tower."""
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    torch.manual_seed(0)
    return CLIPTextModelWithProjection(CLIPTextConfig(**text_config(tokenizer), attn_implementation="sdpa"))


def _principal(rows: Tensor, number: int) -> Tensor:
    """The leading principal directions of the rows, as columns."""
    centred = rows - rows.mean(0)
    covariance = (centred.T @ centred).double()
    return torch.linalg.eigh(covariance)[1].flip(1)[:, :number].float()


def initial_embeddings(tokenizer: Tokenizer, names: Names) -> Tensor:
    """A token starts as the mean of the names it occurs in; the name that it spells alone counts most."""
    codes = torch.cat(
        [
            normalize(names.vectors @ _principal(names.vectors, TARGET_PART), dim=1),
            0.5 * normalize(names.teacher @ _principal(names.teacher, WIDTH - TARGET_PART), dim=1),
        ],
        1,
    )
    size = tokenizer.get_vocab_size()
    encoded = [e.ids for e in tokenizer.encode_batch_fast(names.names, add_special_tokens=False)]
    lengths = torch.tensor([len(ids) for ids in encoded])
    token = torch.tensor([t for ids in encoded for t in ids])
    name = torch.arange(len(encoded)).repeat_interleave(lengths)
    share = torch.from_numpy(names.weights).float() * torch.where(lengths == 1, 50.0, 1 / lengths.clamp(min=1))
    total = torch.zeros(size, WIDTH).index_add_(0, token, share[name, None] * codes[name])
    weight = torch.full((size,), 1e-6).index_add_(0, token, share[name])
    mean = total / weight[:, None]
    noise = 0.02 * torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(1))
    return 0.7 * mean + noise


def run(tower: nn.Module, prefix: Tensor, body: Tensor, ends: Tensor) -> Tensor:
    """States at the end tokens (B, W) for prompts that share their first tokens.

    The tower is causal, so the states of the shared prefix (P, W) are the same for every prompt: they are computed
    once, and only the tokens that follow, body (B, L, W), are computed for each. `ends` are places in the body.
    """
    model = tower.text_model
    places = model.embeddings.position_embedding.weight
    shared, length = len(prefix), body.shape[1]
    first, rest = (prefix + places[:shared])[None], body + places[shared : shared + length]
    allowed = torch.ones(length, shared + length, dtype=torch.bool).tril(shared)
    for layer in model.encoder.layers:
        attention = layer.self_attn

        def parts(hidden: Tensor, attention: nn.Module = attention) -> list[Tensor]:
            mapped = (attention.q_proj(hidden), attention.k_proj(hidden), attention.v_proj(hidden))
            return [x.unflatten(2, (HEADS, -1)).transpose(1, 2) for x in mapped]

        q1, k1, v1 = parts(layer.layer_norm1(first))
        q2, k2, v2 = parts(layer.layer_norm1(rest))
        number = len(body)
        keys = torch.cat([k1.expand(number, -1, -1, -1), k2], 2)
        values = torch.cat([v1.expand(number, -1, -1, -1), v2], 2)
        seen1 = scaled_dot_product_attention(q1, k1, v1, is_causal=True)
        seen2 = scaled_dot_product_attention(q2, keys, values, attn_mask=allowed)
        first = first + attention.out_proj(seen1.transpose(1, 2).flatten(2))
        rest = rest + attention.out_proj(seen2.transpose(1, 2).flatten(2))
        first = first + layer.mlp(layer.layer_norm2(first))
        rest = rest + layer.mlp(layer.layer_norm2(rest))
    return model.final_layer_norm(rest[torch.arange(len(ends)), ends])


def random_prefix(table: Tensor, length: int, generator: torch.Generator) -> Tensor:
    """Context vectors as prompt learners start and leave them: tiny noise, larger noise, words, disturbed words."""
    kind = torch.randint(4, (1,), generator=generator).item()
    noise = torch.randn(length, table.shape[1], generator=generator)
    if kind == 0:
        return 0.02 * noise
    scale = table.std().item()
    if kind == 1:
        return scale * noise * torch.rand(1, generator=generator)
    words = table[torch.randint(len(table), (length,), generator=generator)].detach()
    return words if kind == 2 else words + 0.5 * scale * noise


def _divergence(student: Tensor, target: Tensor, anchors: Tensor) -> Tensor:
    return kl_div(
        log_softmax(student @ anchors.T / TEMPERATURE, 1),
        softmax(target @ anchors.T / TEMPERATURE, 1),
        reduction="batchmean",
    )


def new_refiner(classes: Tensor) -> nn.Module:
    """One unit per class that answers to vectors near the class and pulls them towards it."""
    from deltaenergy.models.lite.model import Refiner

    refiner = Refiner(*classes.shape)
    with torch.no_grad():
        refiner.down.weight.copy_(8 * classes)
        refiner.down.bias.fill_(-2.0)
        refiner.up.weight.copy_(0.05 * classes.T)
    return refiner


class Trainer:
    """Two phases: the tower alone, then the tower with the refiner. In each the rate falls to zero with the steps done.

    The state is saved every minute.
    """

    def __init__(self, names: Names, classes: Tensor, tokenizer: Tokenizer, practice: Practice, folder: Path) -> None:
        self.names, self.classes, self.tokenizer, self.practice = names, classes, tokenizer, practice
        self.file = folder / "tower.safetensors"
        self.tower = new_tower(tokenizer)
        self.table = self.tower.text_model.embeddings.token_embedding.weight
        with torch.no_grad():
            self.table.copy_(initial_embeddings(tokenizer, names))
            self.tower.text_projection.weight[:, :TARGET_PART] = 0.1 * _principal(names.vectors, TARGET_PART)
        self.teacher_head = nn.Linear(WIDTH, names.teacher.shape[1], bias=False)
        self.refiner: nn.Module | None = None
        self.step = 0
        encoded = tokenizer.encode_batch_fast(names.names, add_special_tokens=False)
        self.lengths = np.array([len(e.ids) for e in encoded])
        self._new_optimiser()

    def _new_optimiser(self) -> None:
        decayed = [p for n, p in self.tower.named_parameters() if p.ndim == 2 and "embedding" not in n]
        others = [p for n, p in self.tower.named_parameters() if p.ndim != 2 or "embedding" in n]
        refining = list(self.refiner.parameters()) if self.refiner else []
        self.optimiser = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": 0.02},
                {"params": [*others, *self.teacher_head.parameters(), *refining], "weight_decay": 0.0},
            ],
            lr=PEAK_RATE,
            betas=(0.9, 0.98),
            fused=True,
        )

    def save(self) -> None:
        """Keep the state, whole or not at all."""
        tensors = {"step": torch.tensor(self.step)}
        for part, module in self._modules().items():
            tensors |= {f"{part}/{name}": tensor for name, tensor in module.state_dict().items()}
        for parameter, moments in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser/{parameter}/{name}": tensor for name, tensor in moments.items()}
        write_tensors(self.file, tensors)

    def resume(self) -> None:
        """Go on from the kept state, if there is one."""
        if not self.file.exists():
            return
        tensors = read_tensors(self.file)
        if any(name.startswith("refiner/") for name in tensors):
            self._add_refiner()
        self.step = int(tensors.pop("step"))
        moments: dict[int, dict[str, Tensor]] = {}
        for name in [name for name in tensors if name.startswith("optimiser/")]:
            _, parameter, kind = name.split("/")
            moments.setdefault(int(parameter), {})[kind] = tensors.pop(name)
        for part, module in self._modules().items():
            start = f"{part}/"
            own = {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
            module.load_state_dict(own)
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": moments, "param_groups": groups})

    def _modules(self) -> dict[str, nn.Module]:
        modules = {"tower": self.tower, "head": self.teacher_head}
        return {**modules, "refiner": self.refiner} if self.refiner else modules

    def _add_refiner(self) -> None:
        self.refiner = new_refiner(self.classes)
        self._new_optimiser()

    def batches(self, group: int) -> list[tuple[str, np.ndarray, list[list[int]]]]:
        """Eight batches of prompts: (what they all start with, names, token ids after that); the same on every run."""
        rng = np.random.default_rng([7, group])
        found = []
        picked = self.practice.draw(8 * BATCH, rng)
        lengths = self.lengths[picked]
        for part in rng.permutation(np.array_split(picked[np.argsort(lengths, kind="stable")], 8)):
            start, bodies = self.practice.prompts(part, rng)
            ids = [e.ids[:LONGEST] for e in self.tokenizer.encode_batch_fast(bodies, add_special_tokens=False)]
            found.append((start, part, ids))
        return found

    def loss(self, start: str, picked: np.ndarray, ids: list[list[int]], generator: torch.Generator) -> Tensor:
        """The loss of a batch, by the formula above."""
        first, end = (self.tokenizer.token_to_id(token) for token in (START, END))
        longest = max(map(len, ids)) + 1
        tokens = torch.tensor([row + [end] * (longest - len(row)) for row in ids])
        ends = torch.tensor([len(row) for row in ids])
        opening = self.tokenizer.encode(start, add_special_tokens=False).ids if start else []
        prefix = self.table[torch.tensor([first, *opening])]
        if torch.rand(1, generator=generator).item() < PREFIX_SHARE:
            length = int(torch.randint(1, LONGEST_PREFIX + 1, (1,), generator=generator))
            context = random_prefix(self.table, length, generator)
            prefix = torch.cat([prefix[:1], context, prefix[1:]] if length % 4 == 0 else [prefix[:1], context])
        pooled = run(self.tower, prefix, self.table[tokens], ends)
        student = normalize(self.tower.text_projection(pooled), dim=1)
        if self.refiner:
            student = self.refiner(student)
        target = self.names.vectors[picked]
        apart = 1 - (student * target).sum(1).mean()
        teacher = 1 - torch.cosine_similarity(self.teacher_head(pooled), self.names.teacher[picked]).mean()
        kinds = _divergence(student, target, self.classes) + _divergence(student, target, target)
        return 2 * apart + kinds + TEACHER_SHARE * teacher

    def fit(self, steps: int, progress: Callable[[str], None]) -> None:
        """Train up to `steps` steps, then REFINING_STEPS more with the refiner."""
        self.resume()
        self._phase(0, steps, PEAK_RATE, progress)
        if not self.refiner:
            self._add_refiner()
        self._phase(steps, REFINING_STEPS, REFINING_RATE, progress)
        self.save()

    def _phase(self, before: int, steps: int, peak: float, progress: Callable[[str], None]) -> None:
        self.tower.train()
        saved = time.monotonic()
        running = 0.0
        while self.step < before + steps:
            for start, picked, ids in self.batches(self.step // 8)[self.step % 8 :]:
                done = (self.step - before) / steps
                rate = peak * min(1.0, done / WARM_UP + 1e-3) * 0.5 * (1 + math.cos(math.pi * done))
                for group in self.optimiser.param_groups:
                    group["lr"] = rate
                loss = self.loss(start, picked, ids, torch.Generator().manual_seed(self.step))
                self.optimiser.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(self.tower.parameters(), 1.0)
                self.optimiser.step()
                self.step += 1
                running = 0.98 * running + 0.02 * loss.item() if running else loss.item()
                if self.step % 100 == 0:
                    progress(f"tower: step {self.step - before} of {steps}, loss {running:.3f}")
                if self.step >= before + steps:
                    break
            if time.monotonic() - saved > 60:
                self.save()
                saved = time.monotonic()

    def encode(self, texts: list[str]) -> Tensor:
        """Unit vectors of the joint space for any texts."""
        first, end = (self.tokenizer.token_to_id(token) for token in (START, END))
        ids = [e.ids[: POSITIONS - 2] for e in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        parts = []
        with torch.inference_mode():
            for start in range(0, len(ids), 256):
                some = ids[start : start + 256]
                longest = max(map(len, some)) + 1
                tokens = torch.tensor([row + [end] * (longest - len(row)) for row in some])
                ends = torch.tensor([len(row) for row in some])
                pooled = run(self.tower, self.table[torch.tensor([first])], self.table[tokens], ends)
                parts.append(self.refiner(self.tower.text_projection(pooled)))
        return torch.cat(parts)
