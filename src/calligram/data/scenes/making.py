"""One image with its captions: the work that is shared out among processes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal

from calligram.data.scenes.captions import write_captions
from calligram.data.scenes.composing import Member, compose_scene
from calligram.data.scenes.painting import encode, paint_scene
from calligram.data.scenes.portraits import compose_portrait, write_portrait_captions
from calligram.data.scenes.sentence import Caption
from calligram.data.scenes.truth import View
from calligram.data.scenes.world import Scene

Kind = Literal["scenes", "people"]

_CHUNK = 25


@dataclass(frozen=True)
class Order:
    """What to make: image ``index`` of a seed, with these people in it."""

    kind: Kind
    seed: int
    index: int
    cast: tuple[Member, ...]
    size: int
    captions: int


@dataclass(frozen=True)
class Made:
    """An image as made: what is in it, what is said of it, and the picture as a PNG file."""

    scene: Scene
    captions: tuple[Caption, ...]
    picture: bytes


def make(order: Order) -> Made:
    """Compose, describe and paint one image. Equal orders give equal bytes."""
    rng = random.Random(f"{order.seed}/captions/{order.index}")
    if order.kind == "people":
        scene = compose_portrait(order.seed, order.index, order.cast[0])
        captions = write_portrait_captions(rng, View.of(scene), order.captions)
    else:
        scene = compose_scene(order.seed, order.index, order.cast)
        captions = write_captions(rng, View.of(scene), order.captions)
    picture = encode(paint_scene(scene, order.size))
    # Figures are large and no longer needed; what remains travels between processes.
    return Made(replace(scene, paint=()), tuple(captions), picture)


def make_all(orders: Sequence[Order], workers: int) -> Iterator[Made]:
    """Make images in order, in this process or in several."""
    if workers <= 1:
        yield from map(make, orders)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(make, orders, chunksize=_CHUNK)
