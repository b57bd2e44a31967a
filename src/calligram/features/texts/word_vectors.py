"""Word vectors: files of GloVe, fastText and word2vec, and training by skip-gram."""

from __future__ import annotations

import gzip
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from calligram.errors import UserError, command
from calligram.extras import require
from calligram.features.texts.vocabulary import PAD, Vocabulary
from calligram.files import replace_file
from calligram.text import tokenise

Floats = NDArray[np.float32]
FILE_ENDINGS = (".txt", ".vec", ".bin")


class EmbeddingTable(NamedTuple):
    """Embeddings of all words of a vocabulary."""

    vectors: Tensor
    """(words, dim)"""
    found: int
    """number of words with a vector from the file; the other vectors are random"""


def pretrained_embeddings(
    vocabulary: Vocabulary, file: Path, dim: int, generator: Generator | None = None
) -> EmbeddingTable:
    """Return embeddings of a vocabulary from a file; missing words get random vectors of the same standard deviation.

    Raises:
        UserError: when the file cannot be read, has another dimension, or has none of the words.
    """
    known = read_vectors(file, set(vocabulary.words), dim)
    rows = [(number, known[word]) for number, word in enumerate(vocabulary.words) if word in known]
    if not rows:
        raise UserError(
            f"word vectors {file} have none of the {len(vocabulary)} words of the vocabulary; "
            "give vectors of its language"
        )
    numbers, found = torch.tensor([n for n, _ in rows]), torch.from_numpy(np.stack([v for _, v in rows]))
    table = torch.randn(len(vocabulary), dim, generator=generator) * found.std(correction=0)
    table[numbers] = found
    table[PAD] = 0
    return EmbeddingTable(table, len(rows))


def read_vectors(file: Path, words: Collection[str], dim: int) -> dict[str, Floats]:
    """Read only the vectors of ``words``; a capitalised entry is used if there is no lower-case one."""
    found: dict[str, Floats] = {}
    capitalised: dict[str, Floats] = {}
    for word, vector in _entries(file, dim, words):
        if word in words:
            found.setdefault(word, vector)
        else:
            capitalised.setdefault(word.lower(), vector)
    return {**capitalised, **found}


def read_frequent_vectors(file: Path, count: int, dim: int) -> dict[str, Floats]:
    """Read the vectors of the first ``count`` entries, which are the most frequent words, in lower case.

    Of several spellings of a word, the first one is used.
    """
    first: dict[str, Floats] = {}
    for word, vector in islice(_entries(file, dim, _AnyWord()), count):
        first.setdefault(word.lower(), vector)
    return first


def vector_size(file: Path) -> int:
    """Return the dimension of the vectors in a file.

    Raises:
        UserError: when the file cannot be read.
    """
    kind = _kind(file)
    try:
        with cast(IO[bytes], gzip.open(file) if file.suffix == ".gz" else file.open("rb")) as stream:
            fields = stream.readline().split()
            return int(fields[1]) if kind == ".bin" or len(fields) == 2 else len(fields) - 1
    except (OSError, EOFError, ValueError, IndexError) as error:
        raise _unreadable(file, error) from error


def train_vectors(
    texts: Iterable[str], dim: int = 300, *, epochs: int = 10, window: int = 5, min_count: int = 2, seed: int = 0
) -> dict[str, Floats]:
    """Train skip-gram vectors with negative sampling (word2vec), most frequent word first.

    It uses one worker, because the result of several workers does not depend on the seed alone.
    """
    gensim = require("gensim.models", extra="words", purpose="training of word vectors")
    sentences = [words for words in map(tokenise, texts) if words]
    try:
        trained = gensim.Word2Vec(
            sentences, vector_size=dim, window=window, min_count=min_count, sg=1, workers=1, seed=seed, epochs=epochs
        ).wv
    except RuntimeError as error:
        raise UserError(f"no word occurs {min_count} times in {len(sentences)} texts; give more text") from error
    return {word: trained[word] for word in trained.index_to_key}


def write_vectors(vectors: dict[str, Floats], file: Path) -> None:
    """Write GloVe's text format: a word and its vector on each line; compressed if ``file`` ends in .gz."""
    if _kind(file) == ".bin":
        raise UserError(f"word vectors are written as text; {file.name} must end in .txt, .vec or one of these and .gz")
    file.parent.mkdir(parents=True, exist_ok=True)
    with (
        replace_file(file) as partial,
        cast(IO[bytes], gzip.open(partial, "wb") if file.suffix == ".gz" else partial.open("wb")) as stream,
    ):
        for word, vector in vectors.items():
            stream.write(f"{word} {' '.join(f'{v:.5g}' for v in vector)}\n".encode())


def _entries(file: Path, dim: int, words: Collection[str]) -> Iterator[tuple[str, Floats]]:
    kind = _kind(file)
    try:
        with cast(IO[bytes], gzip.open(file) if file.suffix == ".gz" else file.open("rb")) as stream:
            yield from (_binary if kind == ".bin" else _text)(stream, file, dim, words)
    except (OSError, EOFError, ValueError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> UserError:
    if isinstance(error, FileNotFoundError):
        trained = command("calligram", "words", "TEXT", file)
        return UserError(f"word vectors {file} could not be read: there is no such file; train some with {trained}")
    return UserError(f"word vectors {file} could not be read ({error})")


class _AnyWord(frozenset[str]):
    """A set that contains every word."""

    def __contains__(self, word: object) -> bool:
        return True


def _kind(file: Path) -> str:
    kind = Path(file.stem).suffix if file.suffix == ".gz" else file.suffix
    if kind not in FILE_ENDINGS:
        raise UserError(f"word vectors come in files that end in .txt, .vec or .bin, also with .gz; got {file}")
    return kind


def _text(stream: IO[bytes], file: Path, dim: int, words: Collection[str]) -> Iterator[tuple[str, Floats]]:
    """Read lines of a word and its vector; a first line of two numbers is fastText's header."""
    for number, line in enumerate(stream):
        fields = line.decode("utf-8", "replace").rstrip().split(" ")
        if number == 0 and len(fields) == 2:
            _check_dim(int(fields[1]), dim, file)
            continue
        if number == 0:
            _check_dim(len(fields) - 1, dim, file)
        word = " ".join(fields[:-dim])  # some entries of GloVe contain spaces
        if word in words or word.lower() in words:
            yield word, np.array(fields[-dim:], dtype=np.float32)


def _binary(stream: IO[bytes], file: Path, dim: int, words: Collection[str]) -> Iterator[tuple[str, Floats]]:
    """Read a header line with count and dimension, then for each word its letters, a space and float32 values."""
    count, size = map(int, stream.readline().split())
    _check_dim(size, dim, file)
    buffer, position = b"", 0
    for _ in range(count):
        end = buffer.find(b" ", position)
        while end < 0 or len(buffer) <= end + 4 * dim:
            more = stream.read(1 << 20)
            if not more:
                raise EOFError(f"it ends before its {count} words are complete")
            buffer, position = buffer[position:] + more, 0
            end = buffer.find(b" ")
        word = buffer[position:end].lstrip(b"\n").decode("utf-8", "replace")
        if word in words or word.lower() in words:
            yield word, np.frombuffer(buffer, "<f4", dim, end + 1).copy()
        position = end + 1 + 4 * dim


def _check_dim(found: int, wanted: int, file: Path) -> None:
    if found != wanted:
        raise UserError(
            f"word vectors {file} have dimension {found}, not {wanted}; set the dimension of word vectors to {found}"
        )
