from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from calligram.data.matches import Matches
from calligram.data.pairing import Pairing, Texts, Visuals


class Gradients:
    """Pictures whose every pixel says where it is: red is x, green is y, blue the image's row."""

    def open(self, row: int, side: int = 0) -> Image.Image:
        y, x = np.mgrid[0:20, 0:30]
        return Image.fromarray(np.stack([x, y, np.full_like(x, row)], axis=-1).astype(np.uint8))


def visuals(count: int, boxes: list[list[float]] | None = None) -> Visuals:
    ids = tuple(f"v{n}" for n in range(count))
    return Visuals(ids, Gradients(), np.arange(count), None if boxes is None else np.array(boxes, dtype=np.float32))


def texts(*strings: str) -> Texts:
    return Texts(tuple(f"t{n}" for n in range(len(strings))), strings)


def test_a_region_opens_as_the_crop_of_its_box() -> None:
    part = np.asarray(visuals(1, [[3, 5, 9, 7]]).open(0))
    assert part.shape == (2, 6, 3)
    assert part[0, 0].tolist() == [3, 5, 0]
    assert part[-1, -1].tolist() == [8, 6, 0]


def test_a_box_within_one_pixel_still_opens() -> None:
    assert visuals(1, [[3.2, 5.1, 3.4, 5.2]]).open(0).size == (1, 1)


def test_selected_visuals_keep_their_rows_and_boxes() -> None:
    chosen = visuals(3, [[0, 0, 1, 1], [0, 0, 2, 2], [0, 0, 3, 3]]).select(np.array([2, 0]))
    assert chosen.ids == ("v2", "v0")
    assert chosen.open(0).size == (3, 3)
    assert chosen.open(0).getpixel((0, 0)) == (0, 0, 2)


def test_select_takes_the_texts_that_match_any_chosen_item() -> None:
    pairing = Pairing(
        visuals(3), texts("a", "b", "c"), Matches.from_pairs([(0, 0), (1, 1), (2, 1)], (3, 3)),
        also_true=Matches.from_pairs([(0, 0), (1, 1), (2, 1), (2, 0)], (3, 3)),
    )  # fmt: skip
    part = pairing.select([2, 1])
    assert part.visuals.ids == ("v2", "v1")
    assert part.texts.strings == ("b",)
    assert part.matches == Matches.from_pairs([(0, 0), (1, 0)], (2, 1))
    assert part.also_true is not None
    assert len(part.also_true) == 2


def test_equal_texts_become_one_text_with_all_their_images() -> None:
    pairing = Pairing(
        visuals(3), texts("A dog", "a cat", "a  dog"), Matches.from_pairs([(0, 0), (1, 1), (2, 2)], (3, 3))
    )
    joined = pairing.join_equal_texts()
    assert joined.texts.strings == ("A dog", "a cat")
    assert joined.matches == Matches.from_pairs([(0, 0), (1, 1), (2, 0)], (3, 2))


def test_joining_distinct_texts_changes_nothing() -> None:
    pairing = Pairing(visuals(2), texts("b", "a"), Matches.from_pairs([(0, 0), (1, 1)], (2, 2)))
    joined = pairing.join_equal_texts()
    assert joined.texts == pairing.texts
    assert joined.matches == pairing.matches


def test_matches_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"matches are \(1, 1\) for 2 x 1 items"):
        Pairing(visuals(2), texts("a"), Matches.from_pairs([], (1, 1)))
