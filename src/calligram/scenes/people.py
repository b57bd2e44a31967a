"""The appearance of people, which is the same in all pictures of a person."""

from __future__ import annotations

import random
from dataclasses import dataclass

from calligram.scenes.drawing.figure import CLOTHING_COLOURS, HAIR_COLOURS, SKIN_COLOURS
from calligram.scenes.world import Facts

PERSON_KINDS = ("man", "woman", "boy", "girl")


@dataclass(frozen=True)
class Appearance:
    """Body, hair and clothing of a person. An empty string means that the person does not wear the item."""

    kind: str
    skin: int
    hair: str
    hair_style: str
    top: str
    top_colour: str
    bottom: str
    bottom_colour: str
    hat: str = ""
    hat_colour: str = ""
    pattern: str = "plain"
    shoes: str = "black"
    glasses: str = ""
    bag: str = ""
    bag_colour: str = ""
    beard: str = ""

    def facts(self) -> Facts:
        """Facts about the appearance that captions can mention. Captions do not mention skin."""
        named = {
            "kind": self.kind,
            "hair": self.hair,
            "hair style": self.hair_style,
            "top": self.top,
            "top colour": self.top_colour,
            "bottom": self.bottom,
            "bottom colour": self.bottom_colour,
            "hat": self.hat,
            "hat colour": self.hat_colour,
            "pattern": self.pattern,
            "shoes": self.shoes,
            "glasses": self.glasses,
            "bag": self.bag,
            "bag colour": self.bag_colour,
            "beard": self.beard,
        }
        return {name: value for name, value in named.items() if value}


def sample_appearance(rng: random.Random, *, detailed: bool = False) -> Appearance:
    """Sample an appearance; ``detailed`` adds details that need a large figure: patterns, bags, glasses."""
    kind = rng.choice(PERSON_KINDS)
    female = kind in ("woman", "girl")
    dress = female and rng.random() < 0.35
    top = "dress" if dress else rng.choice(("shirt", "shirt", "jacket"))
    top_colour = rng.choice(CLOTHING_COLOURS)
    bottom = "" if dress else rng.choice(("trousers", "skirt") if female else ("trousers", "trousers", "shorts"))
    # With equal colours, shirt and trousers would look like one garment.
    bottom_colour = rng.choice([c for c in CLOTHING_COLOURS if c != top_colour]) if bottom else ""
    hat = rng.choice(("cap", "hat")) if rng.random() < 0.3 else ""
    extra = _details(rng, kind, top_colour, bottom_colour) if detailed else {}
    return Appearance(
        kind,
        rng.randrange(len(SKIN_COLOURS)),
        rng.choice(tuple(HAIR_COLOURS)),
        rng.choice(("long", "long", "tied")) if female else "short",
        top,
        top_colour,
        bottom,
        bottom_colour,
        hat,
        rng.choice(CLOTHING_COLOURS) if hat else "",
        **extra,
    )


def _details(rng: random.Random, kind: str, upper: str, lower: str) -> Facts:
    bag = rng.choice(("backpack", "handbag")) if rng.random() < 0.5 else ""
    return {
        "pattern": "striped" if rng.random() < 0.35 else "plain",
        "shoes": rng.choice([c for c in ("red", "blue", "green", "black", "white", "yellow") if c != lower]),
        "glasses": "glasses" if rng.random() < 0.3 else "",
        "bag": bag,
        "bag_colour": rng.choice([c for c in CLOTHING_COLOURS if c != upper]) if bag else "",
        "beard": "beard" if kind == "man" and rng.random() < 0.35 else "",
    }


def sample_cast(seed: int, members: int, *, detailed: bool = False) -> list[Appearance]:
    """Sample people with different appearances; person k does not depend on ``members``.

    With tens of thousands of people, the distinct appearances run out and some people are alike.
    """
    cast: list[Appearance] = []
    seen: set[tuple[tuple[str, str], ...]] = set()
    for member in range(members):
        rng = random.Random(f"{seed}/look/{detailed}/{member}")
        for _ in range(50):
            appearance = sample_appearance(rng, detailed=detailed)
            key = tuple(sorted(appearance.facts().items()))
            if key not in seen:
                break
        seen.add(key)
        cast.append(appearance)
    return cast
