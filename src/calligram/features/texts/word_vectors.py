"""Word vectors from files of GloVe, fastText and word2vec, and trained here."""

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
from calligram.features.texts.vocabulary import PAD, Vocabulary, tokenise
from calligram.files import replace_file

Floats = NDArray[np.float32]
FILE_ENDINGS = (".txt", ".vec", ".bin")


class EmbeddingTable(NamedTuple):
    """A vector for every word of a vocabulary."""

    vectors: Tensor
    """(words, dim)"""
    found: int
    """words whose vector comes from the file; the rest are random"""


def pretrained_embeddings(
    vocabulary: Vocabulary, file: Path, dim: int, generator: Generator | None = None
) -> EmbeddingTable:
    """Vectors of a file for a vocabulary's words; words it lacks are drawn with the spread of those it has.

    Raises:
        UserError: when the file cannot be read, has vectors of another size, or has none of the words.
    """
    known = read_vectors(file, set(vocabulary.words), dim)
    rows = [(number, known[word]) for number, word in enumerate(vocabulary.words) if word in known]
    if not rows:
        raise UserError(f"word vectors {file} have none of the vocabulary's {len(vocabulary)} words")
    numbers, found = torch.tensor([n for n, _ in rows]), torch.from_numpy(np.stack([v for _, v in rows]))
    table = torch.randn(len(vocabulary), dim, generator=generator) * found.std(correction=0)
    table[numbers] = found
    table[PAD] = 0
    return EmbeddingTable(table, len(rows))


def read_vectors(file: Path, words: Collection[str], dim: int) -> dict[str, Floats]:
    """The vectors of ``words``, read without holding the others; a capitalised entry serves where no other does."""
    found: dict[str, Floats] = {}
    capitalised: dict[str, Floats] = {}
    for word, vector in _entries(file, dim, words):
        if word in words:
            found.setdefault(word, vector)
        else:
            capitalised.setdefault(word.lower(), vector)
    return {**capitalised, **found}


def read_frequent_vectors(file: Path, count: int, dim: int) -> dict[str, Floats]:
    """The vectors of a file's first words, its most frequent ones, in lower case; the first spelling counts."""
    first: dict[str, Floats] = {}
    for word, vector in islice(_entries(file, dim, _AnyWord()), count):
        first.setdefault(word.lower(), vector)
    return first


def vector_size(file: Path) -> int:
    """Numbers per word in a file.

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
    """Skip-gram vectors with negative sampling (word2vec), most frequent word first.

    One worker: several would race for the same vectors, and the same seed would not give the same result.
    """
    try:
        from gensim.models import Word2Vec
    except ImportError:
        raise UserError('training word vectors needs gensim; install it with "pip install calligram[words]"') from None
    sentences = [words for words in map(tokenise, texts) if words]
    try:
        trained = Word2Vec(
            sentences, vector_size=dim, window=window, min_count=min_count, sg=1, workers=1, seed=seed, epochs=epochs
        ).wv
    except RuntimeError as error:
        raise UserError(f"no word is seen {min_count} times in {len(sentences)} texts; give more text") from error
    return {word: trained[word] for word in trained.index_to_key}


def write_vectors(vectors: dict[str, Floats], file: Path) -> None:
    """Write GloVe's text format, a word and its numbers per line; compressed when ``file`` ends in .gz."""
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
    """Has every word."""

    def __contains__(self, word: object) -> bool:
        return True


def _kind(file: Path) -> str:
    kind = Path(file.stem).suffix if file.suffix == ".gz" else file.suffix
    if kind not in FILE_ENDINGS:
        raise UserError(f"word vectors come in files that end in .txt, .vec or .bin, also with .gz; got {file.name}")
    return kind


def _text(stream: IO[bytes], file: Path, dim: int, words: Collection[str]) -> Iterator[tuple[str, Floats]]:
    """Lines of a word and its numbers; a first line of two numbers is fastText's header."""
    for number, line in enumerate(stream):
        fields = line.decode("utf-8", "replace").rstrip().split(" ")
        if number == 0 and len(fields) == 2:
            _check_dim(int(fields[1]), dim, file)
            continue
        if number == 0:
            _check_dim(len(fields) - 1, dim, file)
        word = " ".join(fields[:-dim])  # some of GloVe's entries contain spaces
        if word in words or word.lower() in words:
            yield word, np.array(fields[-dim:], dtype=np.float32)


def _binary(stream: IO[bytes], file: Path, dim: int, words: Collection[str]) -> Iterator[tuple[str, Floats]]:
    """A line with count and size, then for each word its letters, a space, and its numbers as float32."""
    count, size = map(int, stream.readline().split())
    _check_dim(size, dim, file)
    buffer, place = b"", 0
    for _ in range(count):
        end = buffer.find(b" ", place)
        while end < 0 or len(buffer) <= end + 4 * dim:
            more = stream.read(1 << 20)
            if not more:
                raise EOFError(f"it ends before its {count} words do")
            buffer, place = buffer[place:] + more, 0
            end = buffer.find(b" ")
        word = buffer[place:end].lstrip(b"\n").decode("utf-8", "replace")
        if word in words or word.lower() in words:
            yield word, np.frombuffer(buffer, "<f4", dim, end + 1).copy()
        place = end + 1 + 4 * dim


def _check_dim(found: int, wanted: int, file: Path) -> None:
    if found != wanted:
        raise UserError(f"word vectors {file} have {found} numbers each, not {wanted}; ask for word vectors of {found}")
