"""Words for a classifier's labels that people would use.

Labels are fine ("whippet") and captions are not ("dog"). A label is said by a name that captions are known to use: one
of its own names, their last words, or, where there is a WordNet, a synonym or what the thing is a kind of.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Literal

from calligram.features.vocabulary import tokenise
from calligram.features.wordnet import Synset, WordNet

Naming = Literal["known", "own"]

NOTHING = frozenset(("background", "none", "n/a", ""))
"""labels of classifiers that name nothing"""
STEPS = 4
"""up to here a hypernym is a name for the thing; a whippet is four steps from a dog"""
PREFERRED = ("animal", "artifact")
"""what a label without further names most likely means: a setter is a dog, not someone who sets"""


def names_of(label: str) -> list[str]:
    """A label's names; several are separated by commas, as ImageNet's are.

    >>> names_of("Bike, all-terrain bike, bike")
    ['bike', 'all-terrain bike']
    """
    return list(dict.fromkeys(name.strip().lower() for name in label.split(",") if name.strip()))


def meaning(label: str, wordnet: WordNet) -> Synset | None:
    """The meaning that most of a label's names share.

    Of several it is an animal or an artifact first, then the most frequent one.
    """
    names = names_of(label)
    found = [wordnet.synset(offset) for name in names for offset in wordnet.index.get(name, ())]
    if not found:
        found = [synset for name in names[:1] for synset in wordnet.meanings((tokenise(name) or [""])[-1])]
    if not found:
        return None

    def rank(synset: Synset) -> tuple[int, int]:
        kind = PREFERRED.index(synset.kind) if synset.kind in PREFERRED else len(PREFERRED)
        return -len(set(names) & set(synset.words)), kind

    return min(found, key=rank)  # the first of equals


def known_word(label: str, known: Container[str], wordnet: WordNet | None = None) -> str | None:
    """The nearest name of a label that is among the known words; None where none is."""
    names = names_of(label)
    own = [*names, *(words[-1] for name in names if (words := tokenise(name)))]
    found = next((name for name in own if name in known), None)
    if found is not None or wordnet is None:
        return found
    synset = meaning(label, wordnet)
    return next((word for word in _above(synset, wordnet) if word in known), None) if synset else None


def _above(synset: Synset, wordnet: WordNet) -> Iterator[str]:
    """Words for a thing and for what it is a kind of, nearest first.

    Only words that mean this before anything else: a shuttlecock is a bird, but whoever says bird does not mean it.
    """
    for near in (synset, *wordnet.kinds_of(synset, STEPS)):
        for word in near.words:
            for said in dict.fromkeys((word, word.split()[-1])):
                if wordnet.index.get(said, (None,))[0] == near.offset or (said != word and near is synset):
                    yield said


def said_of(label: str, naming: Naming, known: Container[str], wordnet: WordNet | None = None) -> tuple[str, ...]:
    """The words that stand for a label in a pseudo-sentence.

    ``own`` is the first of its names; ``known`` a known word, or nothing where none is near.
    """
    names = [name for name in names_of(label) if name not in NOTHING]
    name = None if not names else names[0] if naming == "own" else known_word(label, known, wordnet)
    return tuple(tokenise(name)) if name else ()
