"""Noun phrases: what to say of a thing or a group, and the pattern that the words mean."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from calligram.data.scenes.attire import describe_attire
from calligram.data.scenes.look import PEOPLE
from calligram.data.scenes.nouns import GENERAL, NAMES, NUMBERS, TREES, Noun, a
from calligram.data.scenes.query import Constraint, Pattern
from calligram.data.scenes.world import Facts

_SMALL, _LARGE = ("small", "small", "little", "tiny"), ("large", "big", "big", "huge")


class Phrase(NamedTuple):
    """A noun phrase for some of a scene's things."""

    text: str
    pattern: Pattern
    things: tuple[int, ...]

    @property
    def plural(self) -> bool:
        """Whether verbs take the plural."""
        return len(self.things) > 1


def name_things(rng: random.Random, facts: Sequence[Facts], things: Sequence[int], rich: float) -> Phrase:
    """Name one thing or a group of one kind.

    Args:
        facts: of all the scene's things.
        things: which of them to name.
        rich: how likely each further detail is told, 0 to 1.
    """
    shared = _shared([facts[i] for i in things])
    noun = _noun(rng, shared["kind"], general=rng.random() < 0.16)
    said: list[Constraint] = [("kind", noun.kinds)]
    if shared["kind"] in PEOPLE:
        before, after = describe_attire(rng, shared, rich, said) if len(things) == 1 else ("", "")
    else:
        before, after = _looks(rng, shared, rich, said)
    if len(things) == 1:
        text = a(" ".join(filter(None, (before, noun.one)))) + after
        return Phrase(text, Pattern(tuple(said)), tuple(things))
    text = " ".join(filter(None, (NUMBERS[len(things)], before, noun.many))) + after
    return Phrase(text, Pattern(tuple(said), len(things)), tuple(things))


def _noun(rng: random.Random, kind: str, general: bool) -> Noun:
    names = GENERAL[kind] if general and kind in GENERAL else NAMES[kind]
    return rng.choice(names)


def _shared(facts: Sequence[Facts]) -> Facts:
    """What is true of all of them."""
    return {name: value for name, value in facts[0].items() if all(f.get(name) == value for f in facts)}


def _looks(rng: random.Random, shared: Facts, rich: float, said: list[Constraint]) -> tuple[str, str]:
    """Words before and after the noun for size, colour and roof; adds what they claim to ``said``."""
    words, after, kind = [], "", shared["kind"]
    size = shared.get("size", "medium")
    if size != "medium" and rng.random() < 0.2 + 0.5 * rich:
        words.append(_size_word(rng, size, kind))
        said.append(("size", (size,)))
    # Nobody says that a pine or a cactus is green.
    if (
        "colour" in shared
        and kind not in ("pine tree", "palm tree", "cactus", "snowman")
        and rng.random() < 0.35 + 0.6 * rich
    ):
        words.append(shared["colour"])
        said.append(("colour", (shared["colour"],)))
    if "roof" in shared and rng.random() < 0.5 * rich:
        after = f" with {a(shared['roof'])} roof"
        said.append(("roof", (shared["roof"],)))
    return " ".join(words), after


def _size_word(rng: random.Random, size: str, kind: str) -> str:
    if size == "large" and kind in TREES and rng.random() < 0.5:
        return "tall"
    return rng.choice(_SMALL if size == "small" else _LARGE)
