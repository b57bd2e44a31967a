"""Who appears in which image, and which images belong to which split.

Images come in blocks; a block has a cast of its own and lies in one split, so nobody appears in two splits.
"""

from __future__ import annotations

from calligram.data.scenes.composing import Member
from calligram.data.scenes.look import Look, sample_cast
from calligram.data.scenes.making import Kind

_BLOCK: dict[str, tuple[int, int]] = {"scenes": (10, 4), "people": (7, 2)}
"""images in a block, and people who appear in them"""


def cast_of(kind: Kind, seed: int, images: int) -> list[Look]:
    """Everyone who appears in a collection of so many images; an identity is a place in this list."""
    length, members = _BLOCK[kind]
    return sample_cast(seed, -(-images // length) * members, detailed=kind == "people")


def identities_for(kind: Kind, index: int, cast: list[Look]) -> tuple[Member, ...]:
    """The cast of one image: its block's people, or for a portrait the one it shows."""
    length, members = _BLOCK[kind]
    first = index // length * members
    if kind == "people":
        # Four images of the first, three of the second.
        who = first + (index % length) // 4
        return ((who, cast[who]),)
    return tuple((who, cast[who]) for who in range(first, first + members))


def cut(kind: Kind, images: int, splits: tuple[float, float, float]) -> list[str]:
    """The split of each image: train, then dev, then test, cut between blocks.

    With fewer blocks than splits the cut is between images, and people may appear on both sides of it.
    """
    length = _BLOCK[kind][0]
    blocks = -(-images // length)
    if blocks < sum(share > 0 for share in splits):
        blocks, length = images, 1
    counts = _shares(blocks, splits)
    names = [name for name, count in zip(("train", "dev", "test"), counts, strict=True) for _ in range(count)]
    return [names[i // length] for i in range(images)]


def _shares(total: int, shares: tuple[float, float, float]) -> list[int]:
    """Whole numbers in proportion, none of them zero where the share is not and there is enough."""
    exact = [share * total for share in shares]
    counts = [int(e + 1e-9) for e in exact]
    for _ in range(total - sum(counts)):
        most = max(range(3), key=lambda k: exact[k] - counts[k])
        counts[most] += 1
    for k in range(3):
        if shares[k] > 0 and counts[k] == 0 and max(counts) > 1:
            counts[counts.index(max(counts))] -= 1
            counts[k] = 1
    return counts
