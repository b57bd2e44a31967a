"""Words for how a person looks."""

from __future__ import annotations

import random

from calligram.data.scenes.nouns import a, joined
from calligram.data.scenes.query import Constraint
from calligram.data.scenes.world import Facts

TOPS = {"shirt": ("shirt", "t-shirt"), "jacket": ("jacket", "coat"), "dress": ("dress", "dress")}
BOTTOMS = {"trousers": ("trousers", "pants"), "shorts": ("shorts", "shorts"), "skirt": ("skirt", "skirt")}
HATS = ("cap", "hat")


def describe_attire(rng: random.Random, facts: Facts, rich: float, said: list[Constraint]) -> tuple[str, str]:
    """Words before and after the noun for hair and clothing; adds what they claim to ``said``."""
    before, worn = "", []
    if rng.random() < 0.3 * rich:
        before = _hair_before(facts)
        said.append(("hair", (facts["hair"],)))
    top = rng.random() < 0.35 + 0.55 * rich
    bottom = "bottom" in facts and rng.random() < 0.1 + 0.45 * rich
    hat = "hat" in facts and rng.random() < 0.3 + 0.5 * rich
    if top:
        worn.append(_top(rng, facts, said, alone=not bottom and not hat))
    if bottom:
        worn.append(_bottom(rng, facts, said))
    if hat:
        worn.append(_hat(rng, facts, said))
    after = ""
    if worn:
        after = rng.choice((" in ", " in ", " wearing ")) + joined(worn)
    elif rng.random() < 0.3 * rich and facts["hair style"] == "long" and not before:
        after = " with " + rng.choice(("long hair", f"long {facts['hair']} hair"))
        said.append(("hair style", ("long",)))
        if facts["hair"] in after:
            said.append(("hair", (facts["hair"],)))
    return before, after


def _hair_before(facts: Facts) -> str:
    return "blond" if facts["hair"] == "blond" else f"{facts['hair']}-haired"


def _top(rng: random.Random, facts: Facts, said: list[Constraint], alone: bool) -> str:
    colour = facts["top colour"]
    said.append(("top colour", (colour,)))
    if alone and rng.random() < 0.2:
        return colour
    said.append(("top", (facts["top"],)))
    return a(f"{colour} {rng.choice(TOPS[facts['top']])}")


def _bottom(rng: random.Random, facts: Facts, said: list[Constraint]) -> str:
    said.append(("bottom", (facts["bottom"],)))
    said.append(("bottom colour", (facts["bottom colour"],)))
    words = f"{facts['bottom colour']} {rng.choice(BOTTOMS[facts['bottom']])}"
    return a(words) if facts["bottom"] == "skirt" else words


def _hat(rng: random.Random, facts: Facts, said: list[Constraint]) -> str:
    """A cap may be called a hat; a hat with a brim is no cap."""
    said.append(("hat colour", (facts["hat colour"],)))
    exact = facts["hat"] == "cap" and rng.random() < 0.6
    said.append(("hat", ("cap",) if exact else HATS))
    return a(f"{facts['hat colour']} {'cap' if exact else 'hat'}")
