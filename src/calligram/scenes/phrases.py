"""Noun phrases and descriptions of people, the pattern that each claims, and the builder of sentences."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from calligram.scenes.nouns import GENERAL_NOUNS, NUMBER_WORDS, SPECIFIC_NOUNS, TREES, Noun, join_words, with_article
from calligram.scenes.people import PERSON_KINDS
from calligram.scenes.truth import Constraint, SceneQuery, ThingPattern
from calligram.scenes.world import Facts

TOP_WORDS = {"shirt": ("shirt", "t-shirt"), "jacket": ("jacket", "coat"), "dress": ("dress", "dress")}
BOTTOM_WORDS = {"trousers": ("trousers", "pants"), "shorts": ("shorts", "shorts"), "skirt": ("skirt", "skirt")}
HAT_KINDS = ("cap", "hat")
_SMALL_WORDS, _LARGE_WORDS = ("small", "small", "little", "tiny"), ("large", "big", "big", "huge")


_PRONOUNS = {"man": "he", "boy": "he", "woman": "she", "girl": "she"}


class CaptionSpan(NamedTuple):
    """Characters ``start`` to ``end`` of a caption, and the things that they name."""

    start: int
    end: int
    things: tuple[int, ...]


@dataclass(frozen=True)
class SceneCaption:
    """A sentence, the spans of its noun phrases, and its claims."""

    text: str
    spans: tuple[CaptionSpan, ...]
    query: SceneQuery


class NounPhrase(NamedTuple):
    """A noun phrase for one or several things of a scene."""

    text: str
    pattern: ThingPattern
    things: tuple[int, ...]

    @property
    def plural(self) -> bool:
        """Whether the phrase is plural."""
        return len(self.things) > 1


@dataclass
class SentenceBuilder:
    """Builds a sentence from words and noun phrases, and collects its claims."""

    pieces: list[str | NounPhrase] = field(default_factory=list)
    phrases: list[NounPhrase] = field(default_factory=list)
    links: list[tuple[int, str, int]] = field(default_factory=list)
    settings: tuple[str, ...] = ()
    times: tuple[str, ...] = ()

    def name(self, phrase: NounPhrase) -> int:
        """Append a noun phrase; returns its number, for links."""
        self.pieces.append(phrase)
        self.phrases.append(phrase)
        return len(self.phrases) - 1

    def claim(self, number: int, fact: str, value: str) -> None:
        """Add a claim to a phrase, for a fact that other words of the sentence state."""
        phrase = self.phrases[number]
        pattern = replace(phrase.pattern, constraints=(*phrase.pattern.constraints, (fact, (value,))))
        self.phrases[number] = phrase._replace(pattern=pattern)

    def finish(self) -> SceneCaption:
        """Join the pieces to a sentence, and record the spans of the phrases."""
        text, spans = "", []
        for piece in self.pieces:
            words = piece if isinstance(piece, str) else piece.text
            gap = "" if not text or words.startswith(",") else " "
            if not isinstance(piece, str):
                start = len(text) + len(gap)
                spans.append(CaptionSpan(start, start + len(words), piece.things))
            text += gap + words
        query = SceneQuery(tuple(p.pattern for p in self.phrases), tuple(self.links), self.settings, self.times)
        return SceneCaption(text[0].upper() + text[1:] + ".", tuple(spans), query)


def write_distinct(write: Callable[[], SceneCaption | None], count: int) -> list[SceneCaption]:
    """Call ``write`` until it has returned ``count`` different captions; a result of None is ignored.

    After ``40 * count`` attempts, repeated captions are accepted too.
    """
    found: list[SceneCaption] = []
    texts: set[str] = set()
    for attempt in itertools.count():
        caption = write()
        if caption is not None and (caption.text not in texts or attempt > 40 * count):
            texts.add(caption.text)
            found.append(caption)
            if len(found) == count:
                break
    return found


def name_things(rng: random.Random, facts: Sequence[Facts], things: Sequence[int], detail: float) -> NounPhrase:
    """Write a noun phrase for one thing or for a group of one kind.

    Args:
        facts: facts of all things of the scene.
        things: indices of the things to name.
        detail: level of detail, 0 to 1; it scales the probability of each property.
    """
    shared = _shared_facts([facts[i] for i in things])
    noun = _noun(rng, shared["kind"], general=rng.random() < 0.16)
    claims: list[Constraint] = [("kind", noun.kinds)]
    if shared["kind"] in PERSON_KINDS:
        before, after = describe_attire(rng, shared, detail, claims) if len(things) == 1 else ("", "")
    else:
        before, after = _describe_object(rng, shared, detail, claims)
    if len(things) == 1:
        text = with_article(" ".join(filter(None, (before, noun.singular)))) + after
        return NounPhrase(text, ThingPattern(tuple(claims)), tuple(things))
    text = " ".join(filter(None, (NUMBER_WORDS[len(things)], before, noun.plural))) + after
    return NounPhrase(text, ThingPattern(tuple(claims), len(things)), tuple(things))


def _noun(rng: random.Random, kind: str, general: bool) -> Noun:
    names = GENERAL_NOUNS[kind] if general and kind in GENERAL_NOUNS else SPECIFIC_NOUNS[kind]
    return rng.choice(names)


def _shared_facts(facts: Sequence[Facts]) -> Facts:
    """Facts that are equal for all things."""
    return {name: value for name, value in facts[0].items() if all(f.get(name) == value for f in facts)}


def _describe_object(rng: random.Random, shared: Facts, detail: float, claims: list[Constraint]) -> tuple[str, str]:
    """Words before and after the noun for size, colour and roof; adds their constraints to ``claims``."""
    words, after, kind = [], "", shared["kind"]
    size = shared.get("size", "medium")
    if size != "medium" and rng.random() < 0.2 + 0.5 * detail:
        words.append(_size_word(rng, size, kind))
        claims.append(("size", (size,)))
    # People do not mention that a pine or a cactus is green.
    if (
        "colour" in shared
        and kind not in ("pine tree", "palm tree", "cactus", "snowman")
        and rng.random() < 0.35 + 0.6 * detail
    ):
        words.append(shared["colour"])
        claims.append(("colour", (shared["colour"],)))
    if "roof" in shared and rng.random() < 0.5 * detail:
        after = f" with {with_article(shared['roof'])} roof"
        claims.append(("roof", (shared["roof"],)))
    return " ".join(words), after


def _size_word(rng: random.Random, size: str, kind: str) -> str:
    if size == "large" and kind in TREES and rng.random() < 0.5:
        return "tall"
    return rng.choice(_SMALL_WORDS if size == "small" else _LARGE_WORDS)


def describe_attire(rng: random.Random, facts: Facts, detail: float, claims: list[Constraint]) -> tuple[str, str]:
    """Words before and after the noun for hair and clothing; adds their constraints to ``claims``."""
    before, worn = "", []
    if rng.random() < 0.3 * detail:
        before = _hair_before(facts)
        claims.append(("hair", (facts["hair"],)))
    top = rng.random() < 0.35 + 0.55 * detail
    bottom = "bottom" in facts and rng.random() < 0.1 + 0.45 * detail
    hat = "hat" in facts and rng.random() < 0.3 + 0.5 * detail
    if top:
        worn.append(_top(rng, facts, claims, alone=not bottom and not hat))
    if bottom:
        worn.append(_bottom(rng, facts, claims))
    if hat:
        worn.append(_hat(rng, facts, claims))
    after = ""
    if worn:
        after = rng.choice((" in ", " in ", " wearing ")) + join_words(worn)
    elif rng.random() < 0.3 * detail and facts["hair style"] == "long" and not before:
        after = " with " + rng.choice(("long hair", f"long {facts['hair']} hair"))
        claims.append(("hair style", ("long",)))
        if facts["hair"] in after:
            claims.append(("hair", (facts["hair"],)))
    return before, after


def _hair_before(facts: Facts) -> str:
    return "blond" if facts["hair"] == "blond" else f"{facts['hair']}-haired"


def _top(rng: random.Random, facts: Facts, claims: list[Constraint], alone: bool) -> str:
    colour = facts["top colour"]
    claims.append(("top colour", (colour,)))
    if alone and rng.random() < 0.2:
        return colour
    claims.append(("top", (facts["top"],)))
    return with_article(f"{colour} {rng.choice(TOP_WORDS[facts['top']])}")


def _bottom(rng: random.Random, facts: Facts, claims: list[Constraint]) -> str:
    claims.append(("bottom", (facts["bottom"],)))
    claims.append(("bottom colour", (facts["bottom colour"],)))
    words = f"{facts['bottom colour']} {rng.choice(BOTTOM_WORDS[facts['bottom']])}"
    return with_article(words) if facts["bottom"] == "skirt" else words


def _hat(rng: random.Random, facts: Facts, claims: list[Constraint]) -> str:
    """Describe the hat. A cap can be called a hat, but a hat with a brim is not a cap."""
    claims.append(("hat colour", (facts["hat colour"],)))
    exact = facts["hat"] == "cap" and rng.random() < 0.6
    claims.append(("hat", ("cap",) if exact else HAT_KINDS))
    return with_article(f"{facts['hat colour']} {'cap' if exact else 'hat'}")


def describe_person(rng: random.Random, facts: Facts) -> tuple[str, int, SceneQuery]:
    """Describe a person's whole appearance: the text, the end of its first noun phrase, and its claims."""
    claims: list[Constraint] = []
    general = rng.random() < 0.08
    noun = rng.choice((GENERAL_NOUNS if general else SPECIFIC_NOUNS)[facts["kind"]])
    claims.append(("kind", noun.kinds))
    worn = _garments(rng, facts, claims)
    extras = _extras(rng, facts, claims)
    opening = rng.choice((with_article(noun.singular), "the " + noun.singular))
    opening = opening[0].upper() + opening[1:]
    verb = rng.choice((" is wearing ", " wears ", " is dressed in ", " in ", " wearing "))
    text = opening + verb + join_words(worn)
    if extras and verb not in (" in ", " wearing ") and rng.random() < 0.6:
        subject = "The person" if general else _PRONOUNS[facts["kind"]].capitalize()
        text += f". {subject} has " + join_words(extras)
    elif extras:
        text += ", with " + join_words(extras)
    end = len(opening)
    return text + ".", end, SceneQuery((ThingPattern(tuple(claims)),))


def _garments(rng: random.Random, facts: Facts, claims: list[Constraint]) -> list[str]:
    worn = [_describe_top(rng, facts, claims)]
    if "bottom" in facts:
        claims += [("bottom", (facts["bottom"],)), ("bottom colour", (facts["bottom colour"],))]
        words = f"{facts['bottom colour']} {rng.choice(BOTTOM_WORDS[facts['bottom']])}"
        worn.append(with_article(words) if facts["bottom"] == "skirt" else words)
    if rng.random() < 0.7:
        claims.append(("shoes", (facts["shoes"],)))
        worn.append(f"{facts['shoes']} {rng.choice(('shoes', 'shoes', 'sneakers'))}")
    if "hat" in facts and rng.random() < 0.9:
        exact = facts["hat"] == "cap" and rng.random() < 0.6
        claims += [("hat", ("cap",) if exact else HAT_KINDS), ("hat colour", (facts["hat colour"],))]
        worn.append(with_article(f"{facts['hat colour']} {'cap' if exact else 'hat'}"))
    if rng.random() < 0.35:
        rng.shuffle(worn)
    return worn


def _describe_top(rng: random.Random, facts: Facts, claims: list[Constraint]) -> str:
    claims += [("top", (facts["top"],)), ("top colour", (facts["top colour"],))]
    words = f"{facts['top colour']} {rng.choice(TOP_WORDS[facts['top']])}"
    if facts["pattern"] == "striped" and rng.random() < 0.85:
        claims.append(("pattern", ("striped",)))
        words = rng.choice((f"striped {words}", f"{words} with stripes"))
    return with_article(words)


def _extras(rng: random.Random, facts: Facts, claims: list[Constraint]) -> list[str]:
    """Words for hair, glasses, beard and bag."""
    extras = []
    if rng.random() < 0.75:
        claims.append(("hair", (facts["hair"],)))
        style = "tied-back" if facts["hair style"] == "tied" else facts["hair style"]
        if rng.random() < 0.6:
            claims.append(("hair style", (facts["hair style"],)))
            extras.append(f"{style} {facts['hair']} hair")
        else:
            extras.append(f"{facts['hair']} hair")
    if "glasses" in facts and rng.random() < 0.8:
        claims.append(("glasses", ("glasses",)))
        extras.append("glasses")
    if "beard" in facts and rng.random() < 0.8:
        claims.append(("beard", ("beard",)))
        extras.append("a beard")
    if "bag" in facts and rng.random() < 0.9:
        exact = rng.random() < 0.75
        claims += [
            ("bag", (facts["bag"],) if exact else ("backpack", "handbag")),
            ("bag colour", (facts["bag colour"],)),
        ]
        extras.append(with_article(f"{facts['bag colour']} {facts['bag'] if exact else 'bag'}"))
    return extras
