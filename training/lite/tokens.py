"""The tokenizer: CLIP's byte-level BPE in form, with a vocabulary of our own in which common nouns are whole tokens."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

START, END = "<|startoftext|>", "<|endoftext|>"
VOCABULARY = 20_000
WHOLE_WORDS = 12_000  # of the words in names, the most useful, which shall be one token each
PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def _shell(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train(texts: Iterable[str]) -> Tokenizer:
    """Every byte is in the vocabulary, both inside and at the end of a word, so that no text is ever unknown."""
    draft = _shell(models.BPE(continuing_subword_prefix="", end_of_word_suffix="</w>"))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    draft.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            end_of_word_suffix="</w>",
            initial_alphabet=alphabet,
            show_progress=False,
            min_frequency=2,
        ),
    )
    merges = [tuple(pair) for pair in json.loads(draft.to_str())["model"]["merges"]]
    vocabulary = {symbol: i for i, symbol in enumerate(alphabet + [symbol + "</w>" for symbol in alphabet])}
    kept = []
    for left, right in merges:
        if len(vocabulary) == VOCABULARY - 2:
            break
        kept.append((left, right))
        vocabulary.setdefault(left + right, len(vocabulary))
    vocabulary[START], vocabulary[END] = len(vocabulary), len(vocabulary) + 1
    tokenizer = _shell(
        models.BPE(vocab=vocabulary, merges=kept, continuing_subword_prefix="", end_of_word_suffix="</w>")
    )
    tokenizer.post_processor = processors.RobertaProcessing(
        (END, vocabulary[END]), (START, vocabulary[START]), trim_offsets=False, add_prefix_space=False
    )
    return tokenizer


def corpus(names: Iterable[tuple[str, float]], sentences: Iterable[str]) -> Iterator[str]:
    """Each word of the names and sentences, repeated as BPE shall count it.

    A word's use is how much its names are practised times how often people write it; the most useful get a count that
    no merge of rarer words can match.
    """
    split = Regex(PATTERN)
    finder = pre_tokenizers.Split(split, behavior="removed", invert=True)

    def words(text: str) -> list[str]:
        return [word for word, _ in finder.pre_tokenize_str(text.lower())]

    written: Counter[str] = Counter()
    for sentence in sentences:
        written.update(words(sentence))
    use: Counter[str] = Counter()
    for name, weight in names:
        parts = words(name)
        for word in parts:
            use[word] += weight / len(parts) ** 2 * math.log(2 + written[word])
    chosen = {word for word, _ in sorted(use.items(), key=lambda item: (-item[1], item[0]))[:WHOLE_WORDS]}
    chosen |= {word for word, count in written.most_common(1500) if count > 300}
    for word in sorted(set(use) | set(written)):
        count = min(60, int(use[word] + math.sqrt(written[word])))
        for _ in range(count + 200 * (word in chosen)):
            yield word


def save(tokenizer: Tokenizer, folder: Path, longest: int) -> None:
    """tokenizer.json and tokenizer_config.json, as transformers' PreTrainedTokenizerFast reads them."""
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": START,
        "eos_token": END,
        "pad_token": END,
        "model_max_length": longest,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
