"""Nouns for things: singular, plural, and the kinds of things that a noun is true of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from calligram.scenes.people import PERSON_KINDS

ANIMALS = ("dog", "cat", "horse", "cow", "sheep", "bird", "duck")
TREES = ("leafy tree", "pine tree", "palm tree")


@dataclass(frozen=True)
class Noun:
    """A noun in the singular and plural, and the kinds of things that it is true of."""

    singular: str
    plural: str
    kinds: tuple[str, ...]


def _nouns(kind: str, *names: str) -> tuple[Noun, ...]:
    return tuple(Noun(name, _plural(name), (kind,)) for name in names)


def _plural(name: str) -> str:
    """The plural of a noun, which may have several words.

    >>> [_plural(n) for n in ("dog", "bus", "woman", "lady", "sheep", "apartment block")]
    ['dogs', 'buses', 'women', 'ladies', 'sheep', 'apartment blocks']
    """
    *before, last = name.split()
    special = {"man": "men", "woman": "women", "sheep": "sheep", "snowman": "snowmen", "cactus": "cacti"}
    if last in special:
        changed = special[last]
    elif last.endswith("y") and last[-2] not in "aeiou":
        changed = last[:-1] + "ies"
    elif last.endswith(("s", "ch", "sh")):
        changed = last + "es"
    else:
        changed = last + "s"
    return " ".join([*before, changed])


_BIRD = Noun("bird", "birds", ("bird", "duck"))

SPECIFIC_NOUNS: Mapping[str, tuple[Noun, ...]] = {
    "man": _nouns("man", "man", "man", "guy"),
    "woman": _nouns("woman", "woman", "woman", "lady"),
    "boy": _nouns("boy", "boy", "little boy"),
    "girl": _nouns("girl", "girl", "little girl"),
    "dog": _nouns("dog", "dog"),
    "cat": _nouns("cat", "cat"),
    "horse": _nouns("horse", "horse"),
    "cow": _nouns("cow", "cow"),
    "sheep": _nouns("sheep", "sheep"),
    "bird": (_BIRD,),
    "duck": _nouns("duck", "duck"),
    "car": _nouns("car", "car"),
    "bus": _nouns("bus", "bus"),
    "truck": _nouns("truck", "truck", "lorry"),
    "tractor": _nouns("tractor", "tractor"),
    "bicycle": _nouns("bicycle", "bicycle", "bike"),
    "boat": _nouns("boat", "boat", "sailboat", "sailing boat"),
    "ball": _nouns("ball", "ball"),
    "balloon": _nouns("balloon", "balloon"),
    "umbrella": _nouns("umbrella", "umbrella"),
    "kite": _nouns("kite", "kite"),
    "bench": _nouns("bench", "bench"),
    "chair": _nouns("chair", "chair", "armchair"),
    "cactus": _nouns("cactus", "cactus"),
    "snowman": _nouns("snowman", "snowman"),
    "tent": _nouns("tent", "tent"),
    "leafy tree": (Noun("tree", "trees", TREES), *_nouns("leafy tree", "leafy tree")),
    "pine tree": _nouns("pine tree", "pine tree", "pine", "fir tree"),
    "palm tree": _nouns("palm tree", "palm tree", "palm"),
    "house": _nouns("house", "house"),
    "tower": _nouns("tower", "apartment block", "tall building"),
    "barn": _nouns("barn", "barn"),
}
"""the usual nouns for each kind of thing"""

_PERSON = Noun("person", "people", PERSON_KINDS)
_CHILD = (Noun("child", "children", ("boy", "girl")), Noun("kid", "kids", ("boy", "girl")))
_ANIMAL = Noun("animal", "animals", ANIMALS)
_VEHICLE = Noun("vehicle", "vehicles", ("car", "bus", "truck", "tractor"))
_BUILDING = Noun("building", "buildings", ("house", "tower", "barn"))

GENERAL_NOUNS: Mapping[str, tuple[Noun, ...]] = {
    "man": (_PERSON, Noun("adult", "adults", ("man", "woman"))),
    "woman": (_PERSON, Noun("adult", "adults", ("man", "woman"))),
    "boy": (_PERSON, *_CHILD),
    "girl": (_PERSON, *_CHILD),
    **{kind: (_ANIMAL,) for kind in ANIMALS if kind != "duck"},
    "duck": (_ANIMAL, _BIRD),
    **{kind: (_VEHICLE,) for kind in _VEHICLE.kinds},
    **{kind: (_BUILDING,) for kind in _BUILDING.kinds},
    **{kind: (Noun("tree", "trees", TREES),) for kind in TREES},
}
"""more general nouns, which are true of several kinds"""

NUMBER_WORDS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}


def with_article(words: str) -> str:
    """Add the indefinite article.

    >>> with_article("orange ball"), with_article("red umbrella")
    ('an orange ball', 'a red umbrella')
    """
    return ("an " if words[0] in "aeiou" else "a ") + words


def join_words(words: Sequence[str]) -> str:
    """Join words with commas and a final "and".

    >>> join_words(["a shirt", "shorts", "a hat"])
    'a shirt, shorts and a hat'
    """
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
