"""Pictures that a study draws of the encodings and scores of a row's test split."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from calligram.data.pairing import Pairing
from calligram.evaluation.embedding_map import draw_map
from calligram.evaluation.encoding import EncodedPairing
from calligram.evaluation.retrieval import Floats, Look
from calligram.evaluation.sheets import draw_found_images, draw_found_texts


def draws_map(test: Pairing, target: Path, title: str) -> Look:
    """The test split as points on a plane."""

    def look(encoded: EncodedPairing, scores: Floats) -> None:
        del scores
        draw_map(encoded, test.matches, target, title)

    return look


def draws_images(test: Pairing, target: Path) -> Look:
    """The first images of a few texts."""

    def look(encoded: EncodedPairing, scores: Floats) -> None:
        del encoded
        draw_found_images(scores, test, target, queries=3)

    return look


def draws_found(test: Pairing, texts: Path, images: Path) -> Look:
    """The first five texts of some images, and the first four images of some texts (mmca, Figs. 4 and 5)."""

    def look(encoded: EncodedPairing, scores: Floats) -> None:
        del encoded
        draw_found_texts(scores, test, texts, queries=4, first=5)
        draw_found_images(scores, test, images, queries=4, first=4)

    return look


def looking(looks: Sequence[Look]) -> Look | None:
    """All of them, one after the other; None where there are none."""

    def look(encoded: EncodedPairing, scores: Floats) -> None:
        for each in looks:
            each(encoded, scores)

    return look if looks else None
