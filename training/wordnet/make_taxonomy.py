"""Make the table of WordNet's kinds of nouns: which synset is a kind of which, and which is a single named thing.

    python training/wordnet/make_taxonomy.py [--wordnet /usr/share/wordnet]

Debian's package `wordnet-base` carries the database. Each synset line of `data.noun` lists its words and its pointers
(see wndb(5) and wninput(5)): `@` to what it is a kind of, `@i` to what it is an instance of. The output holds one line
for each synset, in the order of the database:

    word|word|…<tab>parent parent …<tab>i

A second file holds, for each of ImageNet's 1,000 classes, the number of its line: the digits of a class's key (a wnid)
are the offset of its synset.

Words are in lower case with spaces. A parent is the number of its line, and a last field `i` marks an instance.
Compressed without a time stamp, so that equal input gives equal bytes.
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

OUTPUT = Path(__file__).resolve().parents[2] / "src/deltaenergy/scores/negatives/data/wordnet-3.0-taxonomy.txt.gz"
NAMES = Path(__file__).resolve().parents[2] / "src/deltaenergy/data/catalogue/names/imagenet.csv"
KIND, INSTANCE = "@", "@i"


def read_synsets(data: Path) -> list[tuple[str, list[str], list[tuple[str, str]]]]:
    """Of every synset: its offset in the file, its words, and its pointers upwards as (symbol, offset)."""
    synsets = []
    for line in data.read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):  # the licence at the head of the file
            continue
        fields = line.split(" | ", 1)[0].split(" ")
        count = int(fields[3], 16)
        words = [word.replace("_", " ").lower() for word in fields[4 : 4 + 2 * count : 2]]
        pointers = fields[5 + 2 * count :]
        upwards = [(symbol, offset) for symbol, offset in zip(pointers[::4], pointers[1::4], strict=False)]
        synsets.append((fields[0], words, [pointer for pointer in upwards if pointer[0] in (KIND, INSTANCE)]))
    return synsets


def make_lines(data: Path) -> list[str]:
    """The lines of the table."""
    synsets = read_synsets(data)
    numbers = {offset: number for number, (offset, _, _) in enumerate(synsets)}
    return [
        "\t".join(
            [
                "|".join(dict.fromkeys(words)),
                " ".join(str(numbers[offset]) for _, offset in upwards),
                *(["i"] if any(symbol == INSTANCE for symbol, _ in upwards) else []),
            ]
        )
        for _, words, upwards in synsets
    ]


def imagenet_lines(data: Path, keys: list[str]) -> list[int]:
    """The line of each of ImageNet's classes."""
    numbers = {offset: number for number, (offset, _, _) in enumerate(read_synsets(data))}
    return [numbers[key.removeprefix("n")] for key in keys]


def main() -> None:
    """Write the compressed table and print its size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"), help="folder with data.noun")
    parser.add_argument("--out", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    lines = make_lines(arguments.wordnet / "data.noun")
    text = "".join(f"{line}\n" for line in lines)
    if arguments.out == OUTPUT:
        keys = [line.split(",")[0] for line in NAMES.read_text(encoding="utf-8").splitlines()[1:]]
        rows = imagenet_lines(arguments.wordnet / "data.noun", keys)
        (OUTPUT.parent / "imagenet-synsets.txt").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    arguments.out.write_bytes(gzip.compress(text.encode("utf-8"), compresslevel=9, mtime=0))
    print(f"{len(lines):,} synsets, {sum(line.endswith(chr(9) + 'i') for line in lines):,} of them instances")
    print(f"{arguments.out}: {arguments.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
