"""Text input with one vector for each text: mean of word vectors, tf-idf or Fisher vectors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from torch import Tensor

from calligram.errors import UserError
from calligram.features.inputs import TextInput
from calligram.features.store import FeatureStore, MemoryFeatureStore, content_key
from calligram.features.texts.fisher_vectors import FisherVectorizer
from calligram.features.texts.word_counts import KnownWords, MeanVectorizer, TfIdfVectorizer, WordVectors
from calligram.files import parts_hash
from calligram.progress import Track, silent

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
TextVectorKind = Literal["mean", "tfidf", "gmm", "hglmm", "gmm+hglmm"]

VECTORS_FILE = "text-vectors.safetensors"
ENCODE_BATCH_TEXTS = 1024
"""texts in one batch of the encoding, and in one part of the feature store"""


SIMPLE_VECTORIZERS: Mapping[str, type[TfIdfVectorizer | MeanVectorizer]] = {
    "mean": MeanVectorizer,
    "tfidf": TfIdfVectorizer,
}
"""vectorizers by kind; all other kinds are Fisher vectors"""


@dataclass(frozen=True)
class TextVectorSettings:
    """Settings of text vectors."""

    kind: Annotated[TextVectorKind, "mean of word vectors, tf-idf, or Fisher vectors of a mixture"] = "hglmm"
    centres: Annotated[int, "number of centres of a mixture", (1, 10000)] = 30
    pca: Annotated[int, "dimension of Fisher vectors after PCA; 0 for no PCA", (0, 1000000)] = 2000
    tfidf_words: Annotated[int, "number of words in tf-idf vectors, most frequent first", (1, 10000000)] = 3000


class TextVectorizer(Protocol):
    """Turns strings into vectors; holds all fitted values."""

    @property
    def known(self) -> KnownWords:
        """Words that it counts."""
        ...

    @property
    def dim(self) -> int:
        """Dimension of a text's vector."""
        ...

    def encode(self, strings: Sequence[str]) -> Floats:
        """Return vectors (N, dim); zeros for a text without a known word."""
        ...

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that ``restore`` needs, in addition to the words."""
        ...


@dataclass(frozen=True)
class TextVectorInput(TextInput):
    """Text input with one vector for each text, and a mask of ones."""

    kind: ClassVar[str] = "text-vectors"

    settings: TextVectorSettings
    vectorizer: TextVectorizer = field(repr=False, compare=False)

    @classmethod
    def fit(
        cls,
        strings: Sequence[str],
        words: WordVectors | None,
        settings: TextVectorSettings,
        track: Track = silent,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> TextVectorInput:
        """Fit on training texts only. Tf-idf needs no word vectors.

        Raises:
            UserError: when word vectors are needed, but not given.
        """
        if settings.kind == "tfidf":
            return cls(settings, TfIdfVectorizer.fit(strings, settings.tfidf_words))
        if words is None:
            raise UserError(
                f'text vectors of kind {settings.kind} need word vectors: train some with "calligram words" and give '
                "their file with --set text.vectors=FILE, or use --set text.fitted.kind=tfidf, which needs none"
            )
        if settings.kind == "mean":
            return cls(settings, MeanVectorizer(words))
        vectorizer = FisherVectorizer.fit(
            strings,
            words,
            hybrid=[kind == "hglmm" for kind in settings.kind.split("+")],
            centres=settings.centres,
            pca=settings.pca,
            seed=seed,
            track=track,
            device=device,
        )
        return cls(settings, vectorizer)

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the arrays into ``folder`` and return settings and words."""
        save_file(
            {name: np.ascontiguousarray(a) for name, a in self.vectorizer.arrays().items()}, folder / VECTORS_FILE
        )
        return {"settings": asdict(self.settings), "words": list(self.vectorizer.known.words)}

    @classmethod
    def read(cls, folder: Path, content: Mapping[str, Any]) -> TextVectorInput:
        """Read what ``save`` wrote."""
        values = {key: value for key, value in content["settings"].items() if key != "seed"}  # an older setting
        settings, known = TextVectorSettings(**values), KnownWords(tuple(content["words"]))
        vectorizer: type[TfIdfVectorizer | MeanVectorizer | FisherVectorizer] = SIMPLE_VECTORIZERS.get(
            settings.kind, FisherVectorizer
        )
        return cls(settings, vectorizer.restore(known, load_file(folder / VECTORS_FILE)))

    @property
    def dim(self) -> int:
        """Dimension of a text's vector."""
        return self.vectorizer.dim

    @property
    def vector_size(self) -> int:
        """Dimension of a text's vector."""
        return self.dim

    def __len__(self) -> int:
        return len(self.vectorizer.known.words)

    def is_known(self, word: str) -> bool:
        """Whether a word has a vector, whole or in one of its parts."""
        return bool(self.vectorizer.known.numbers(word))

    @property
    def mask_token(self) -> int:
        """Refuse: text vectors have no tokens to replace."""
        raise UserError("word dropout cannot be applied to text vectors; use text.word_dropout=0")

    def to(self, device: torch.device | str) -> None:
        """Compute the principal components of Fisher vectors on a device."""
        if isinstance(self.vectorizer, FisherVectorizer) and self.vectorizer.pca is not None:
            self.vectorizer.pca.to(device)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything that a text's vector depends on."""
        parts = [json.dumps([self.settings.kind, self.vectorizer.known.words]).encode()]
        parts += [name.encode() + array.tobytes() for name, array in sorted(self.vectorizer.arrays().items())]
        return parts_hash(parts, 12)

    def texts(self, strings: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Encode a few texts: vectors (N, dim) and a mask of ones (N, 1)."""
        return self.load(strings).take(np.arange(len(strings)))

    def load(self, strings: Sequence[str], cache: Path | None = None, track: Track = silent) -> TextVectorRows:
        """Encode many texts; vectors are read from the store in ``cache`` if they are there. Without it, in memory."""
        store = MemoryFeatureStore() if cache is None else FeatureStore(cache, {"text vectors": self.fingerprint})
        keys = [content_key(string.encode("utf-8", "surrogatepass")) for string in strings]
        if any(key not in store for key in keys):
            with store.fill():  # another process may be at the same texts
                self._add_missing(store, dict(zip(keys, strings, strict=True)), track)
        return TextVectorRows(store, keys, self.dim)

    def _add_missing(self, store: FeatureStore | MemoryFeatureStore, strings: Mapping[str, str], track: Track) -> None:
        missing = [(key, string) for key, string in strings.items() if key not in store]
        for start in track(range(0, len(missing), ENCODE_BATCH_TEXTS), "encoding texts"):
            part = missing[start : start + ENCODE_BATCH_TEXTS]
            store.append(
                [key for key, _ in part], self.vectorizer.encode([string for _, string in part]).astype(np.float16)
            )


class TextVectorRows:
    """Stored vectors of a list of texts."""

    def __init__(self, store: FeatureStore | MemoryFeatureStore, keys: list[str], dim: int) -> None:
        self._store, self._keys, self._dim = store, keys, dim
        self.lengths: Ints = np.ones(len(keys), dtype=np.int64)

    def __len__(self) -> int:
        return len(self._keys)

    def take(self, rows: Ints) -> tuple[Tensor, Tensor]:
        """Return vectors (N, dim) in single precision and a mask of ones (N, 1)."""
        mask = torch.ones(len(rows), 1, dtype=torch.bool)
        if not len(rows):
            return torch.zeros(0, self._dim), mask
        return torch.from_numpy(self._store.take([self._keys[row] for row in rows.tolist()]).astype(np.float32)), mask
