"""Texts as the concepts they name: the query of the tag-matching baseline (a3vse, Sec. 4.2)."""

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
from calligram.features.pseudo.image_words import EMPTY_LABELS, MAX_HYPERNYM_STEPS, label_names, label_synset
from calligram.features.pseudo.wordnet import WordNet, base_forms
from calligram.features.texts.vocabulary import tokenise
from calligram.progress import Track, silent

Ints = NDArray[np.int64]
Expansion = Literal["none", "synonyms", "kinds"]


def concept_names(label: str, expansion: Expansion, wordnet: WordNet | None) -> tuple[str, ...]:
    """Names by which a text asks for a concept (a3vse, Sec. 4.2).

    ``synonyms`` are those of the paper, words that share a meaning with the concept; ``kinds`` has also what it is a
    kind of, so that "dog" asks for every breed.
    """
    names = [name for name in label_names(label) if name not in EMPTY_LABELS]
    synset = label_synset(label, wordnet) if names and wordnet is not None and expansion != "none" else None
    if synset is not None:
        assert wordnet is not None
        names += synset.words
        if expansion == "kinds":
            names += [word for near in wordnet.kinds_of(synset, MAX_HYPERNYM_STEPS) for word in near.words]
    return tuple(dict.fromkeys(" ".join(tokenise(name)) for name in names if tokenise(name)))


@dataclass(frozen=True)
class ConceptInput:
    """A text as k ones among all concepts: those of which it has a name, in any form."""

    kind: ClassVar[str] = "concepts"

    names: tuple[tuple[str, ...], ...]
    """of each concept"""
    irregular: Mapping[str, tuple[str, ...]]
    """words that unusual plurals are of"""

    @classmethod
    def from_labels(cls, labels: Sequence[str], expansion: Expansion, wordnet: WordNet | None) -> ConceptInput:
        """For a classifier's labels. All it takes from WordNet is kept, so that a query does not need one."""
        names = tuple(concept_names(label, expansion, wordnet) for label in labels)
        said = {name for of_label in names for name in of_label}
        plurals = {} if wordnet is None else wordnet.irregular
        return cls(names, {form: of for form, of in plurals.items() if set(of) & said})

    def save(self, folder: Path) -> dict[str, Any]:
        """All names."""
        del folder
        return {"names": [list(n) for n in self.names], "irregular": {k: list(v) for k, v in self.irregular.items()}}

    @classmethod
    def read(cls, folder: Path, content: Mapping[str, Any]) -> ConceptInput:
        """From what ``save`` gave."""
        del folder
        irregular = {k: tuple(v) for k, v in content["irregular"].items()}
        return cls(tuple(tuple(n) for n in content["names"]), irregular)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def mask_token(self) -> int:
        """There is no word to hide."""
        raise UserError("the words of concepts cannot be hidden in training; use text.word_dropout=0")

    @cached_property
    def concepts_of(self) -> dict[str, list[int]]:
        """Concepts that a name asks for."""
        found: dict[str, list[int]] = {}
        for concept, names in enumerate(self.names):
            for name in names:
                found.setdefault(name, []).append(concept)
        return found

    @cached_property
    def _longest(self) -> int:
        return max((len(name.split()) for name in self.concepts_of), default=1)

    def named_concepts(self, text: str) -> list[int]:
        """Concepts that a text names; names of several words must stand together."""
        words = tokenise(text)
        found: set[int] = set()
        for start in range(len(words)):
            for stop in range(start + 1, min(start + self._longest, len(words)) + 1):
                before, last = words[start : stop - 1], words[stop - 1]
                for form in dict.fromkeys((last, *base_forms(last, None, self.irregular))):
                    found.update(self.concepts_of.get(" ".join([*before, form]), ()))
        return sorted(found)

    def texts(self, strings: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Queries (N, concepts) and ones (N, 1)."""
        return self.load(strings).take(np.arange(len(strings)))

    def load(self, strings: Sequence[str], cache: Path | None = None, track: Track = silent) -> ConceptRows:
        """Many texts."""
        del cache, track
        return ConceptRows([self.named_concepts(string) for string in strings], len(self))


class ConceptRows:
    """Concepts of a list of texts."""

    def __init__(self, asked: list[list[int]], concepts: int) -> None:
        self._asked, self._concepts = asked, concepts
        self.lengths: Ints = np.ones(len(asked), dtype=np.int64)

    def __len__(self) -> int:
        return len(self._asked)

    def take(self, rows: Ints) -> tuple[Tensor, Tensor]:
        """Queries (N, concepts) and ones (N, 1)."""
        queries = torch.zeros(len(rows), self._concepts)
        for place, row in enumerate(rows.tolist()):
            queries[place, self._asked[row]] = 1
        return queries, torch.ones(len(rows), 1, dtype=torch.bool)
