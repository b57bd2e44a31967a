"""Texts as the concepts that they name: the query of the tag-matching baseline (a3vse, Sec. 4.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calligram.errors import UserError
from calligram.features.inputs import TextInput
from calligram.features.pseudo.image_words import EMPTY_LABELS, MAX_HYPERNYM_STEPS, label_names, label_synset
from calligram.features.pseudo.wordnet import WordNet, base_forms
from calligram.progress import Track, silent
from calligram.text import tokenise

Ints = NDArray[np.int64]
Expansion = Literal["none", "synonyms", "kinds"]


def concept_names(label: str, expansion: Expansion, wordnet: WordNet | None) -> tuple[str, ...]:
    """Return the names by which a text can mention a concept (a3vse, Sec. 4.2).

    ``synonyms`` is the expansion of the paper: words of the same synset. ``kinds`` adds the hypernyms, so that "dog"
    matches every breed.
    """
    names = [name for name in label_names(label) if name not in EMPTY_LABELS]
    synset = label_synset(label, wordnet) if names and wordnet is not None and expansion != "none" else None
    if synset is not None:
        assert wordnet is not None
        names += synset.words
        if expansion == "kinds":
            names += [word for near in wordnet.hypernyms_of(synset, MAX_HYPERNYM_STEPS) for word in near.words]
    return tuple(dict.fromkeys(" ".join(tokenise(name)) for name in names if tokenise(name)))


@dataclass(frozen=True)
class ConceptInput(TextInput):
    """Text input: a binary vector over all concepts, one where the text contains a name of the concept in any form."""

    kind: ClassVar[str] = "concepts"

    names: tuple[tuple[str, ...], ...]
    """names of each concept"""
    irregular: Mapping[str, tuple[str, ...]]
    """singular forms of each irregular plural"""

    @classmethod
    def from_labels(cls, labels: Sequence[str], expansion: Expansion, wordnet: WordNet | None) -> ConceptInput:
        """Build the input for a classifier's labels; it keeps all data of WordNet that a query needs."""
        names = tuple(concept_names(label, expansion, wordnet) for label in labels)
        all_names = {name for label in names for name in label}
        plurals = {} if wordnet is None else wordnet.irregular
        return cls(names, {form: singular for form, singular in plurals.items() if set(singular) & all_names})

    def save(self, folder: Path) -> dict[str, Any]:
        """Return all names."""
        del folder
        return {"names": [list(n) for n in self.names], "irregular": {k: list(v) for k, v in self.irregular.items()}}

    @classmethod
    def read(cls, folder: Path, content: Mapping[str, Any]) -> ConceptInput:
        """Read what ``save`` returned."""
        del folder
        irregular = {k: tuple(v) for k, v in content["irregular"].items()}
        return cls(tuple(tuple(n) for n in content["names"]), irregular)

    @property
    def vector_size(self) -> int:
        """Number of concepts."""
        return len(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def is_known(self, word: str) -> bool:
        """Whether a word names a concept."""
        return bool(self.named_concepts(word))

    @property
    def mask_token(self) -> int:
        """Refuse: concepts have no tokens to replace."""
        raise UserError("word dropout cannot be applied to concepts; use text.word_dropout=0")

    @cached_property
    def concepts_of(self) -> dict[str, list[int]]:
        """Concepts by name."""
        found: dict[str, list[int]] = {}
        for concept, names in enumerate(self.names):
            for name in names:
                found.setdefault(name, []).append(concept)
        return found

    @cached_property
    def _max_name_words(self) -> int:
        return max((len(name.split()) for name in self.concepts_of), default=1)

    def named_concepts(self, text: str) -> list[int]:
        """Return the concepts that a text names; the words of a name must be adjacent."""
        words = tokenise(text)
        found: set[int] = set()
        for start in range(len(words)):
            for stop in range(start + 1, min(start + self._max_name_words, len(words)) + 1):
                before, last = words[start : stop - 1], words[stop - 1]
                for form in dict.fromkeys((last, *base_forms(last, None, self.irregular))):
                    found.update(self.concepts_of.get(" ".join([*before, form]), ()))
        return sorted(found)

    def texts(self, strings: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Encode a few texts: queries (N, concepts) and a mask of ones (N, 1)."""
        return self.load(strings).take(np.arange(len(strings)))

    def load(self, strings: Sequence[str], cache: Path | None = None, track: Track = silent) -> ConceptRows:
        """Find the concepts of many texts."""
        del cache, track
        return ConceptRows([self.named_concepts(string) for string in strings], len(self))


class ConceptRows:
    """Concepts of a list of texts."""

    def __init__(self, text_concepts: list[list[int]], concepts: int) -> None:
        self._text_concepts, self._concepts = text_concepts, concepts
        self.lengths: Ints = np.ones(len(text_concepts), dtype=np.int64)

    def __len__(self) -> int:
        return len(self._text_concepts)

    def take(self, rows: Ints) -> tuple[Tensor, Tensor]:
        """Return queries (N, concepts) and a mask of ones (N, 1)."""
        queries = torch.zeros(len(rows), self._concepts)
        for number, row in enumerate(rows.tolist()):
            queries[number, self._text_concepts[row]] = 1
        return queries, torch.ones(len(rows), 1, dtype=torch.bool)
