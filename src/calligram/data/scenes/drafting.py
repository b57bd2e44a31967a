"""From images as made to the records of a collection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from calligram.data.draft import CaptionRecord, Draft, ImageRecord, PhraseRecord, RegionRecord, Value
from calligram.data.scenes.look import PEOPLE
from calligram.data.scenes.making import Made, Order
from calligram.data.scenes.nouns import ANIMALS, GENERAL, TREES
from calligram.data.scenes.painting import pixels
from calligram.data.scenes.query import Query
from calligram.data.scenes.relations import relations
from calligram.data.scenes.sentence import Caption
from calligram.data.scenes.shards import Shards
from calligram.data.scenes.truth import View, all_true
from calligram.data.scenes.world import Scene


def draft_of(made: Iterable[Made], folder: Path, orders: Sequence[Order], splits: Sequence[str]) -> Draft:
    """Write the pictures into tars in ``folder`` and describe everything in a draft."""
    first = orders[0]
    draft = Draft(f"{first.kind}-{len(orders)}-s{first.seed}")
    draft.about = {
        "generator": f"calligram {first.kind}",
        "seed": first.seed,
        "images": len(orders),
        "size": first.size,
        "licence": "CC0-1.0",
    }
    prefix = "person" if first.kind == "people" else "scene"
    views: list[View] = []
    queries: list[Query] = []
    with Shards(folder) as shards:
        for row, one in enumerate(made):
            name = f"{prefix}-{row:06d}"
            draft.images.append(_image(name, one.scene, first.size))
            draft.images[-1].at = shards.add(f"{name}.png", one.picture)
            draft.images[-1].split = splits[row]
            draft.regions += _regions(name, one.scene, first.size)
            for number, caption in enumerate(one.captions):
                _add_caption(draft, name, number, caption, one.scene)
            queries += [caption.query for caption in one.captions]
            views.append(View.of(one.scene))
            if first.kind == "people":
                draft.images[-1].identity = one.scene.things[0].identity
    draft.also_true = all_true(views, queries)
    return draft


def _image(name: str, scene: Scene, size: int) -> ImageRecord:
    people = sum(thing.kind in PEOPLE for thing in scene.things)
    metadata: dict[str, Value] = {
        "setting": scene.setting,
        "time": scene.time,
        "things": len(scene.things),
        "people": people,
        "facts": scene.facts(relations(scene)),
    }
    return ImageRecord(name, None, metadata=metadata, size=pixels(scene, size))


def _regions(name: str, scene: Scene, size: int) -> Iterator[RegionRecord]:
    width, height = pixels(scene, size)
    for number, thing in enumerate(scene.things):
        x0, y0, x1, y1 = (edge * size for edge in thing.box)
        box = (max(0.0, x0), max(0.0, y0), min(float(width), x1), min(float(height), y1))
        colour = thing.facts.get("colour") or thing.facts.get("top colour")
        yield RegionRecord(f"{name}/{number}", name, box, "truth", thing.kind, colour, None, thing.identity)


def _add_caption(draft: Draft, name: str, number: int, caption: Caption, scene: Scene) -> None:
    own = f"{name}#{number}"
    draft.captions.append(CaptionRecord(own, caption.text, (name,), {"query": caption.query.to_json()}))
    for place, span in enumerate(caption.spans):
        draft.phrases.append(
            PhraseRecord(
                f"{own}/{place}",
                own,
                span.start,
                span.end,
                _category(scene.things[span.things[0]].kind),
                f"{name}/" + "+".join(str(i) for i in span.things),
                tuple(f"{name}/{i}" for i in span.things),
            )
        )


def _category(kind: str) -> str:
    """The type of entity, in the words of Flickr30K Entities where it has them."""
    if kind in PEOPLE:
        return "people"
    if kind in ANIMALS:
        return "animals"
    if kind in TREES:
        return "plants"
    general = GENERAL.get(kind, ())
    return f"{general[0].one}s" if general else "other"
