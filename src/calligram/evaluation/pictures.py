"""The pictures of an evaluation: what is found both ways, how pairs rank, how scores and features lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calligram.data.pairing import Pairing
from calligram.evaluation.correlation import IMAGES, correlation, draw_correlation
from calligram.evaluation.cross_rank import cross_ranks, draw_cross_ranks
from calligram.evaluation.encoding import EncodedPairing
from calligram.evaluation.overlap import draw_overlap
from calligram.evaluation.retrieval import overlap_of
from calligram.evaluation.sheets import draw_found_images, draw_found_texts
from calligram.models.matcher import Matcher

Floats = NDArray[np.floating]
Ints = NDArray[np.int64]


def sample(images: int, seed: int = 0) -> Ints:
    """The images whose features are compared, ascending."""
    chosen = np.random.default_rng(seed).choice(images, min(IMAGES, images), replace=False)
    return np.sort(chosen).astype(np.int64)


def draw_pictures(
    matcher: Matcher,
    encoded: EncodedPairing,
    scores: Floats,
    pairing: Pairing,
    folder: Path,
    *,
    before: Floats | None = None,
) -> list[Path]:
    """Draw ``images.png``, ``texts.png``, ``ranks.png``, ``overlap.png`` and ``correlation.png`` into ``folder``.

    Args:
        before: (N, D) features of the images of ``sample`` before training, to stand beside the matcher's.
    """
    draw_found_images(scores, pairing, folder / "images.png")
    draw_found_texts(scores, pairing, folder / "texts.png")
    draw_cross_ranks({"this matcher": cross_ranks(scores, pairing.matches)}, folder / "ranks.png")
    drawn = [folder / "images.png", folder / "texts.png", folder / "ranks.png"]
    apart = overlap_of(matcher, scores, pairing)
    if apart is not None:
        draw_overlap(apart, folder / "overlap.png")
        drawn.append(folder / "overlap.png")
    vectors = encoded.images.vectors[sample(len(pairing.visuals))].float().cpu().numpy()
    panels = {} if before is None else {"the backbone's features, before training": correlation(before)}
    panels["this matcher's features"] = correlation(vectors)
    draw_correlation(panels, folder / "correlation.png")
    return [*drawn, folder / "correlation.png"]
