from __future__ import annotations

from calligram.data.draft import Problems
from calligram.data.readers.entities_annotations import parse_annotation


def annotation(*things: str) -> bytes:
    size = "<size><width>50</width><height>40</height></size>"
    return f"<annotation>{size}{''.join(f'<object>{t}</object>' for t in things)}</annotation>".encode()


def box(*corners: int) -> str:
    names = ("xmin", "ymin", "xmax", "ymax")
    return "<bndbox>" + "".join(f"<{n}>{c}</{n}>" for n, c in zip(names, corners, strict=True)) + "</bndbox>"


def test_boxes_counted_from_one_become_continuous() -> None:
    """The pixel in the corner, 1..1 there, is 0..1 here."""
    found = parse_annotation(annotation("<name>7</name>" + box(1, 1, 1, 1)), "a", Problems())
    assert found.boxes == [(0, 0, 1, 1)]
    assert found.size == (50, 40)


def test_a_box_may_belong_to_several_chains_and_a_chain_have_several_boxes() -> None:
    data = annotation("<name>7</name><name>8</name>" + box(1, 1, 9, 9), "<name>8</name>" + box(2, 2, 9, 9))
    found = parse_annotation(data, "a", Problems())
    assert (found.boxes_of("7"), found.boxes_of("8")) == ((0,), (0, 1))


def test_scenes_have_no_boxes() -> None:
    found = parse_annotation(annotation("<name>9</name><scene>1</scene><nobndbox>1</nobndbox>"), "a", Problems())
    assert found.boxes_of("9") == ()


def test_boxes_without_area_and_broken_files_are_skipped_and_named() -> None:
    problems = Problems()
    parse_annotation(annotation("<name>7</name>" + box(9, 1, 3, 5)), "a.xml", problems)
    assert parse_annotation(b"<annotation><obj", "b.xml", problems).boxes == []
    assert [(p.kind, p.item) for p in problems.found] == [
        ("box without area", "a.xml"),
        ("unreadable annotation", "b.xml"),
    ]
