"""``calligram words``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calligram.cli.screen import console


def words(
    source: Annotated[Path, typer.Argument(help="Text file, a caption per line, also .gz; or a collection.")],
    out: Annotated[Path, typer.Argument(help="File for the vectors: .txt or .txt.gz.")],
    dim: Annotated[int, typer.Option(min=1, help="Numbers per word.")] = 300,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the text.")] = 10,
    min_count: Annotated[int, typer.Option(min=1, help="Leave out words seen less often.")] = 2,
    seed: Annotated[int, typer.Option(help="Same seed, same vectors.")] = 0,
) -> None:
    """Train word vectors on captions (word2vec), for --set text.vectors=OUT; of a collection, on its train split."""
    from calligram.features.word_vectors import train_vectors, write_vectors

    vectors = train_vectors(_captions(source), dim, epochs=epochs, min_count=min_count, seed=seed)
    write_vectors(vectors, out)
    console.print(f"{len(vectors)} words of {dim} numbers in {out}")


def _captions(source: Path) -> list[str]:
    from calligram.data.collection import Collection
    from calligram.data.sentence_files import read_sentences

    return list(Collection.open(source).sentences("train").texts.strings) if source.is_dir() else read_sentences(source)
