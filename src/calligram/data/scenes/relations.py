"""How things lie to each other, read off their boxes."""

from __future__ import annotations

from calligram.data.scenes.world import Scene, Thing

RELATIONS = ("holding", "riding", "on", "left of", "right of", "next to", "in front of", "behind", "under")

_LIVING = frozenset({"man", "woman", "boy", "girl", "dog", "cat", "horse", "cow", "sheep"})


def relations(scene: Scene) -> list[tuple[int, str, int]]:
    """Every relation that holds in a scene, staged or by position, as (thing, relation, thing)."""
    found = list(scene.bonds)
    bound = {frozenset((i, j)) for i, _, j in scene.bonds}
    for i, a in enumerate(scene.things):
        for j, b in enumerate(scene.things):
            if i != j and frozenset((i, j)) not in bound:
                found += [(i, name, j) for name in _by_position(a, b)]
    return found


def _by_position(a: Thing, b: Thing) -> list[str]:
    names = []
    overlap = min(a.box[2], b.box[2]) - max(a.box[0], b.box[0])
    narrow = min(a.box[2] - a.box[0], b.box[2] - b.box[0])
    offset = (a.box[0] + a.box[2] - b.box[0] - b.box[2]) / 2
    if abs(offset) > 0.1 and overlap < 0.5 * narrow:
        names.append("left of" if offset < 0 else "right of")
    if not (a.standing and b.standing):
        return names
    nearer = a.ground - b.ground
    if -0.12 < overlap < 0.4 * narrow and abs(nearer) < 0.17:
        names.append("next to")
    if overlap >= 0.4 * narrow and abs(nearer) > 0.03:
        names.append("in front of" if nearer > 0 else "behind")
    if _is_under(a, b, overlap):
        names.append("under")
    return names


def _is_under(a: Thing, tree: Thing, overlap: float) -> bool:
    """Someone stands at the trunk, below the crown."""
    if a.kind not in _LIVING or tree.kind not in ("leafy tree", "palm tree"):
        return False
    high = tree.box[3] - tree.box[1]
    near = -0.02 < a.ground - tree.ground < 0.3
    return near and overlap > 0.6 * (a.box[2] - a.box[0]) and a.box[1] > tree.box[1] + 0.25 * high
