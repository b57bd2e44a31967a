"""Annotations of Flickr30K Entities: which chains of mentions have which boxes."""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.etree import ElementTree

from calligram.data.problems import Problems

Box = tuple[float, float, float, float]


@dataclass
class Annotation:
    """The boxes of one image, in continuous pixels counted from 0, and the chains that each belongs to."""

    size: tuple[int, int] | None = None
    boxes: list[Box] = field(default_factory=list)
    chains: list[tuple[str, ...]] = field(default_factory=list)
    """names of each box's chains"""

    def boxes_of(self, chain: str) -> tuple[int, ...]:
        """Numbers of the boxes of one chain; scenes and things never drawn have none."""
        return tuple(n for n, names in enumerate(self.chains) if chain in names)


def parse_annotation(data: bytes, item: str, problems: Problems) -> Annotation:
    """Read one ``Annotations/KEY.xml``. What cannot be read is skipped and reported."""
    try:
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        problems.skip("unreadable annotation", item, str(error))
        return Annotation()
    found = Annotation(_size(root))
    for thing in root.findall("object"):
        names = tuple(n.text.strip() for n in thing.findall("name") if n.text)
        for corner in thing.findall("bndbox"):
            box = _box(corner)
            if box is None:
                problems.skip("box without area", item, f"of chain {', '.join(names)}")
            else:
                found.boxes.append(box)
                found.chains.append(names)
    return found


def _size(root: ElementTree.Element) -> tuple[int, int] | None:
    try:
        size = int(root.findtext("size/width", "")), int(root.findtext("size/height", ""))
    except ValueError:
        return None
    return size if min(size) > 0 else None


def _box(corner: ElementTree.Element) -> Box | None:
    try:
        left, top, right, bottom = (float(corner.findtext(k, "")) for k in ("xmin", "ymin", "xmax", "ymax"))
    except ValueError:
        return None
    # The source counts pixels from 1 and includes the last one: pixel 1..1 is 0..1 here.
    box = (left - 1, top - 1, right, bottom)
    return box if box[2] > box[0] and box[3] > box[1] else None
