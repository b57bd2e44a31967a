"""Ways to say what things do, how they lie, where and when."""

from __future__ import annotations

from collections.abc import Mapping

OUTDOORS = ("park", "beach", "street", "snow", "desert", "farm", "lake", "forest")

PLACES: Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "park": (
        ("in the park", ("park",)),
        ("in a park", ("park",)),
        ("in a green park", ("park",)),
        ("on the grass", ("park", "farm", "lake")),
    ),
    "beach": (
        ("on the beach", ("beach",)),
        ("at the beach", ("beach",)),
        ("by the sea", ("beach",)),
        ("by the water", ("beach", "lake")),
    ),
    "street": (("on the street", ("street",)), ("in the city", ("street",)), ("on a city street", ("street",))),
    "snow": (("in the snow", ("snow",)), ("on a snowy field", ("snow",)), ("in a snowy landscape", ("snow",))),
    "desert": (("in the desert", ("desert",)), ("in a desert", ("desert",)), ("on the sand", ("desert", "beach"))),
    "farm": (("on a farm", ("farm",)), ("on the farm", ("farm",)), ("in a farm field", ("farm",))),
    "lake": (
        ("by the lake", ("lake",)),
        ("at a lake", ("lake",)),
        ("at a mountain lake", ("lake",)),
        ("by the water", ("beach", "lake")),
    ),
    "forest": (("in the forest", ("forest",)), ("in the woods", ("forest",)), ("in a forest", ("forest",))),
    "room": (
        ("in the living room", ("room",)),
        ("in a room", ("room",)),
        ("indoors", ("room",)),
        ("inside", ("room",)),
    ),
}
"""for each setting, words and the settings they are true of"""

OUTSIDE = (("outdoors", OUTDOORS), ("outside", OUTDOORS))

SCENES: Mapping[str, str] = {
    "park": "park scene",
    "beach": "beach scene",
    "street": "street scene",
    "snow": "snowy scene",
    "desert": "desert scene",
    "farm": "farm scene",
    "lake": "lake scene",
    "forest": "forest scene",
    "room": "scene in a living room",
}

WHEN: Mapping[str, tuple[str, ...]] = {
    "day": ("on a sunny day", "during the day", "in daylight"),
    "sunset": ("at sunset", "at dusk", "as the sun sets"),
    "night": ("at night", "in the moonlight", "under the moon"),
}

DEEDS: Mapping[str, tuple[str, str, str]] = {
    "standing": ("standing", "stands", "stand"),
    "walking": ("walking", "walks", "walk"),
    "running": ("running", "runs", "run"),
    "jumping": ("jumping", "jumps", "jump"),
    "waving": ("waving", "waves", "wave"),
    "sitting": ("sitting", "sits", "sit"),
    "flying": ("flying", "flies", "fly"),
    "swimming": ("swimming", "swims", "swim"),
    "riding": ("riding", "rides", "ride"),
    "holding": ("holding", "holds", "hold"),
}
"""progressive, singular, plural"""

LINKS: Mapping[str, tuple[str, ...]] = {
    "left of": ("to the left of", "on the left of", "left of"),
    "right of": ("to the right of", "on the right of", "right of"),
    "next to": ("next to", "beside", "close to"),
    "in front of": ("in front of",),
    "behind": ("behind",),
    "under": ("under", "beneath"),
    "on": ("on",),
}

EXTRAS = ("nearby", "in the picture", "in view")
