"""Nouns of a WordNet database: synonyms and hypernyms (Fellbaum, 1998).

The original files are read (``index.noun``, ``data.noun``, ``noun.exc``), as Debian's ``wordnet-base`` and NLTK's
corpus contain them. Nothing is downloaded.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from calligram.errors import UserError

DATABASE_FILES = ("index.noun", "data.noun", "noun.exc")
INSTALL_HINT = "install Debian's wordnet-base, or set NLTK_DATA to a folder with corpora/wordnet"

CATEGORIES = {"05": "animal", "06": "artifact", "13": "food", "17": "object", "18": "person", "20": "plant"}
"""categories of nouns by the number of their lexicographer file"""

_PLURAL_ENDINGS = (
    ("ses", "s"),
    ("xes", "x"),
    ("zes", "z"),
    ("ches", "ch"),
    ("shes", "sh"),
    ("men", "man"),
    ("ies", "y"),
    ("s", ""),
)
"""plural endings and their singular endings, as in WordNet's morphology"""


@dataclass(frozen=True)
class Synset:
    """A meaning: its words, most usual first, and its hypernyms."""

    offset: int
    words: tuple[str, ...]
    """in lower case, with spaces between the words of a name"""
    hypernyms: tuple[int, ...]
    category: str = ""
    """a value of ``CATEGORIES``, or empty"""


@dataclass(frozen=True)
class WordNet:
    """The nouns of one database."""

    folder: Path
    index: dict[str, tuple[int, ...]] = field(repr=False)
    """offsets of each word's synsets, most frequent meaning first"""
    irregular: dict[str, tuple[str, ...]] = field(repr=False)
    """singular forms of each irregular plural"""
    data: bytes = field(repr=False)

    @classmethod
    def find(cls) -> WordNet | None:
        """Open the database of ``NLTK_DATA`` or of the system; None if there is none."""
        named = [Path(p) / "corpora" / "wordnet" for p in os.environ.get("NLTK_DATA", "").split(os.pathsep) if p]
        for folder in (*named, Path("/usr/share/nltk_data/corpora/wordnet"), Path("/usr/share/wordnet")):
            if all((folder / name).is_file() for name in DATABASE_FILES):
                return cls.open(folder)
        return None

    @classmethod
    def open(cls, folder: Path) -> WordNet:
        """Read the database in a folder."""
        try:
            index = (folder / "index.noun").read_text(encoding="latin-1").splitlines()
            exceptions = (folder / "noun.exc").read_text(encoding="latin-1").splitlines()
            data = (folder / "data.noun").read_bytes()
        except OSError as error:
            raise UserError(f"WordNet in {folder} could not be read ({error}); {INSTALL_HINT}") from error
        # "lemma n SENSES POINTERS pointer... senses tagged offset...": the last SENSES numbers are the offsets.
        rows = (line.split() for line in index if line and not line.startswith(" "))
        words = {row[0].replace("_", " "): tuple(map(int, row[-int(row[2]) :])) for row in rows}
        forms = (line.split() for line in exceptions if line)
        return cls(folder, words, {f[0].replace("_", " "): tuple(f[1:]) for f in forms}, data)

    def base_forms(self, word: str) -> tuple[str, ...]:
        """Return the base forms of a word that the database lists: the word and its possible singular forms."""
        return base_forms(word, self.index, self.irregular)

    def synsets(self, word: str) -> list[Synset]:
        """Return the synsets of a word in any form, most frequent first."""
        return [self.synset(offset) for form in self.base_forms(word.lower()) for offset in self.index[form]]

    def synset(self, offset: int) -> Synset:
        """Return the synset at an offset of the database."""
        return _parse_synset(self.data[offset : self.data.index(b"\n", offset)].decode("latin-1"))

    def hypernyms_of(self, synset: Synset, max_steps: int = 100) -> Iterator[Synset]:
        """Yield the direct and indirect hypernyms of a synset, nearest first."""
        seen, front = {synset.offset}, [synset]
        for _ in range(max_steps):
            above = dict.fromkeys(offset for near in front for offset in near.hypernyms)
            front = [self.synset(offset) for offset in above if offset not in seen]
            seen.update(near.offset for near in front)
            yield from front


def base_forms(word: str, known: Container[str] | None, irregular: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the word and its possible singular forms that are known; with ``known`` None, all of them."""
    found = [word, *irregular.get(word, ())]
    if word not in irregular and not word.endswith("ss"):
        ends = [(e, single) for e, single in _PLURAL_ENDINGS if word.endswith(e) and len(word) > len(e) + 1]
        found += [word[: -len(ending)] + single for ending, single in ends]
    return tuple(dict.fromkeys(form for form in found if known is None or form in known))


@lru_cache(maxsize=65536)
def _parse_synset(line: str) -> Synset:
    """Parse a line "offset file type COUNT(hex) word id ... POINTERS symbol offset type position ... | gloss"."""
    fields = line.split(" | ")[0].split()
    count = int(fields[3], 16)
    words = tuple(fields[4 + 2 * i].replace("_", " ").lower() for i in range(count))
    first = 4 + 2 * count
    pointers = [fields[first + 1 + 4 * i : first + 5 + 4 * i] for i in range(int(fields[first]))]
    above = tuple(int(p[1]) for p in pointers if p[0] in ("@", "@i"))
    return Synset(int(fields[0]), words, above, CATEGORIES.get(fields[1], ""))
