"""Descriptions of a person's whole look, as witnesses give them."""

from __future__ import annotations

import random

from calligram.data.scenes.attire import BOTTOMS, HATS, TOPS
from calligram.data.scenes.nouns import GENERAL, NAMES, a, joined
from calligram.data.scenes.query import Constraint, Pattern, Query
from calligram.data.scenes.world import Facts

_PRONOUN = {"man": "he", "boy": "he", "woman": "she", "girl": "she"}


def describe_person(rng: random.Random, facts: Facts) -> tuple[str, int, Query]:
    """One description: the text, where the opening noun phrase ends, and what it claims."""
    said: list[Constraint] = []
    general = rng.random() < 0.08
    noun = rng.choice((GENERAL if general else NAMES)[facts["kind"]])
    said.append(("kind", noun.kinds))
    worn = _garments(rng, facts, said)
    extras = _extras(rng, facts, said)
    opening = rng.choice((a(noun.one), "the " + noun.one))
    opening = opening[0].upper() + opening[1:]
    verb = rng.choice((" is wearing ", " wears ", " is dressed in ", " in ", " wearing "))
    text = opening + verb + joined(worn)
    if extras and verb not in (" in ", " wearing ") and rng.random() < 0.6:
        subject = "The person" if general else _PRONOUN[facts["kind"]].capitalize()
        text += f". {subject} has " + joined(extras)
    elif extras:
        text += ", with " + joined(extras)
    end = len(opening)
    return text + ".", end, Query((Pattern(tuple(said)),))


def _garments(rng: random.Random, facts: Facts, said: list[Constraint]) -> list[str]:
    worn = [_top(rng, facts, said)]
    if "bottom" in facts:
        said += [("bottom", (facts["bottom"],)), ("bottom colour", (facts["bottom colour"],))]
        words = f"{facts['bottom colour']} {rng.choice(BOTTOMS[facts['bottom']])}"
        worn.append(a(words) if facts["bottom"] == "skirt" else words)
    if rng.random() < 0.7:
        said.append(("shoes", (facts["shoes"],)))
        worn.append(f"{facts['shoes']} {rng.choice(('shoes', 'shoes', 'sneakers'))}")
    if "hat" in facts and rng.random() < 0.9:
        exact = facts["hat"] == "cap" and rng.random() < 0.6
        said += [("hat", ("cap",) if exact else HATS), ("hat colour", (facts["hat colour"],))]
        worn.append(a(f"{facts['hat colour']} {'cap' if exact else 'hat'}"))
    if rng.random() < 0.35:
        rng.shuffle(worn)
    return worn


def _top(rng: random.Random, facts: Facts, said: list[Constraint]) -> str:
    said += [("top", (facts["top"],)), ("top colour", (facts["top colour"],))]
    words = f"{facts['top colour']} {rng.choice(TOPS[facts['top']])}"
    if facts["pattern"] == "striped" and rng.random() < 0.85:
        said.append(("pattern", ("striped",)))
        words = rng.choice((f"striped {words}", f"{words} with stripes"))
    return a(words)


def _extras(rng: random.Random, facts: Facts, said: list[Constraint]) -> list[str]:
    """Hair, glasses, beard and bag."""
    extras = []
    if rng.random() < 0.75:
        said.append(("hair", (facts["hair"],)))
        style = "tied-back" if facts["hair style"] == "tied" else facts["hair style"]
        if rng.random() < 0.6:
            said.append(("hair style", (facts["hair style"],)))
            extras.append(f"{style} {facts['hair']} hair")
        else:
            extras.append(f"{facts['hair']} hair")
    if "glasses" in facts and rng.random() < 0.8:
        said.append(("glasses", ("glasses",)))
        extras.append("glasses")
    if "beard" in facts and rng.random() < 0.8:
        said.append(("beard", ("beard",)))
        extras.append("a beard")
    if "bag" in facts and rng.random() < 0.9:
        exact = rng.random() < 0.75
        said += [("bag", (facts["bag"],) if exact else ("backpack", "handbag")), ("bag colour", (facts["bag colour"],))]
        extras.append(a(f"{facts['bag colour']} {facts['bag'] if exact else 'bag'}"))
    return extras
