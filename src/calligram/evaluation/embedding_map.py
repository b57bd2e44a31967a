"""Images and texts of a joint space laid out on a plane, so that what is close there is close here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calligram.data.matches import Matches
from calligram.evaluation.encoding import EncodedPairing
from calligram.models.matcher import unit

Floats = NDArray[np.float32]
MOST = 1000
"""images that are drawn; t-SNE of many thousands takes minutes and shows less"""


def lay_out(vectors: Floats, seed: int = 0) -> Floats:
    """Places (N, 2) of vectors (N, D) by t-SNE over cosines (van der Maaten and Hinton, 2008)."""
    from sklearn.manifold import TSNE

    # A neighbourhood is far smaller than the whole; scikit-learn refuses anything else.
    perplexity = min(30.0, max(1.0, (len(vectors) - 1) / 3))
    places = TSNE(metric="cosine", init="random", perplexity=perplexity, random_state=seed).fit_transform(vectors)
    return np.asarray(places, dtype=np.float32)


def draw_map(encoded: EncodedPairing, matches: Matches, target: Path, title: str = "") -> Path:
    """Draw images in blue and one text of each in red, a thin line between the two (a3vse, Fig. 3).

    Images without a text are left out.
    """
    from matplotlib.figure import Figure

    image, text = matches.pairs()
    _, first = np.unique(image, return_index=True)
    image, text = image[first][:MOST], text[first][:MOST]
    vectors = [
        unit(side.vectors).cpu().numpy()[rows] for side, rows in ((encoded.images, image), (encoded.texts, text))
    ]
    places = lay_out(np.concatenate(vectors))
    one, two = places[: len(image)], places[len(image) :]
    figure = Figure(figsize=(5, 5), layout="constrained")
    axis = figure.subplots()
    for start, end in zip(one, two, strict=True):
        axis.plot([start[0], end[0]], [start[1], end[1]], color="0.85", linewidth=0.4, zorder=1)
    for points, colour, name in ((one, "tab:blue", "images"), (two, "tab:red", "texts")):
        axis.scatter(points[:, 0], points[:, 1], s=5, color=colour, label=name, zorder=2)
    axis.set(title=title, xticks=[], yticks=[])
    axis.legend(frameon=False, fontsize=8)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=110)
    return target
