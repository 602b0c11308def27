"""The stages of the training, in order: teacher, targets, tokens, tower, adapter, export."""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from training.lite import adapter, export, prompts, tokens, wordnet
from training.lite.joint import JointSpace, class_list, embeddings_by_key, load_rows
from training.lite.targets import Names, build_names
from training.lite.teacher import embed_all, text_of
from training.lite.tower import Trainer

NAMES = ("teacher", "targets", "tokens", "tower", "adapter", "export")
STEPS = 1600
Progress = Callable[[str], None]


def run(work: Path, out: Path, steps: int, pictures: Path | None, again: str | None, progress: Progress) -> None:
    """Go through the stages; what is done already is loaded."""
    if again:
        for name in NAMES[NAMES.index(again) :]:
            _forget(work, name)
    names = _targets(work, progress)
    space = load_file(work / "joint.safetensors")
    tokenizer = _tokens(work, names, progress)
    trainer = Trainer(names, space["classes"], tokenizer, prompts.Practice(names, _adjectives()), work)
    trainer.fit(steps, progress)
    head, cosines = adapter.train(work, space, trainer.encode, pictures, progress)
    export.write(out, trainer.tower, trainer.refiner, tokenizer, head, cosines, progress)


def _forget(work: Path, stage: str) -> None:
    files = {
        "teacher": ["teacher"],
        "targets": ["joint.safetensors", "names.safetensors", "names.tsv"],
        "tokens": ["tokenizer.json"],
        "tower": ["tower.safetensors"],
        "adapter": ["adapter.safetensors", "pictures"],
        "export": [],
    }
    for file in files[stage]:
        path = work / file
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _targets(work: Path, progress: Progress) -> Names:
    table = work / "names.tsv"
    if not table.exists():
        nouns = list(wordnet.nouns().values())
        order = (
            [s for s in nouns if s.visible] + [s for s in nouns if not s.visible] + list(wordnet.adjectives().values())
        )
        keys = [s.key for s in order]
        rows = embed_all(
            [text_of(s.lemmas, s.gloss if s.key[0] == "n" else "") for s in order], work / "teacher", progress
        )
        embeddings = embeddings_by_key(keys, rows)
        weights, _, mean = load_rows()
        progress("targets: the joint space")
        space = JointSpace([key for key, _ in class_list()], weights, mean, embeddings)
        progress("targets: a vector for every name")
        written = Counter(word for text in _sentences([s.gloss for s in order]) for word in text.lower().split())
        names = build_names(space, keys, embeddings, written)
        joint = space.joint
        save_file(
            {"look": joint.look.contiguous(), "meaning": joint.meaning, "mean": joint.mean, "classes": joint.classes},
            work / "joint.safetensors",
        )
        save_file(
            {"vectors": names.vectors, "teacher": names.teacher, "weights": torch.from_numpy(names.weights)},
            work / "names.safetensors",
        )
        lines = ["\t".join(row) for row in zip(names.names, names.kinds, names.heads, names.glosses)]
        table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    tensors = load_file(work / "names.safetensors")
    rows = [line.split("\t") for line in table.read_text("utf-8").splitlines()]
    return Names(
        [r[0] for r in rows],
        tensors["vectors"],
        tensors["teacher"],
        np.asarray(tensors["weights"]),
        [r[3] for r in rows],
        [r[1] for r in rows],
        [r[2] for r in rows],
    )


def _sentences(glosses: list[str]) -> list[str]:
    """Running text: glosses and descriptions of classes."""
    return glosses + [sentence for some in prompts.descriptions().values() for sentence in some[::3]]


def _adjectives() -> list[str]:
    """Common one-word adjectives: WordNet lists few senses of rare ones."""
    ranks = wordnet.sense_ranks("adj", "a")
    return sorted(word for word, senses in ranks.items() if len(senses) >= 3 and word.isalpha())


def _tokens(work: Path, names: Names, progress: Progress) -> Tokenizer:
    file = work / "tokenizer.json"
    if not file.exists():
        progress("tokens: learning the vocabulary")
        sentences = _sentences(names.glosses) + [template.format("") for template in prompts.templates()] * 50
        tokenizer = tokens.train(tokens.corpus(zip(names.names, names.weights), sentences))
        tokenizer.save(str(file))
    return Tokenizer.from_file(str(file))
