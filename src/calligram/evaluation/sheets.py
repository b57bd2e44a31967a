"""Pictures people would rather look at: queries with what was found for them."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from calligram.data.pairing import Pairing
from calligram.evaluation.encoding import encode_pairing, load_pairing, score_matrix
from calligram.features.inputs import Inputs
from calligram.models.matcher import Matcher

if TYPE_CHECKING:  # it takes a while to import, and most callers draw nothing
    from matplotlib.figure import Figure

Floats = NDArray[np.floating]
Ints = NDArray[np.int64]


def draw_sheet(
    matcher: Matcher, inputs: Inputs, pairing: Pairing, file: Path, *, queries: int = 6, first: int = 5, seed: int = 0
) -> None:
    """Draw randomly chosen texts with their first images; see ``draw_found_images``."""
    scores = score_matrix(matcher, encode_pairing(matcher, inputs, load_pairing(inputs, pairing)))
    draw_found_images(scores, pairing, file, queries=queries, first=first, seed=seed)


def draw_found_images(
    scores: Floats, pairing: Pairing, file: Path, *, queries: int = 6, first: int = 5, seed: int = 0
) -> None:
    """Draw randomly chosen texts with their first images (dual-path, Fig. 9).

    A green frame marks a match, which is an image of the same person where items match by identity; a blue one an
    image of which the text is true all the same.
    """
    from matplotlib.figure import Figure

    chosen = _chosen(len(pairing.texts), queries, seed)
    figure = Figure(figsize=(2.6 + 1.9 * first, 1.9 * len(chosen)), layout="constrained")
    axes = figure.subplots(len(chosen), first + 1, squeeze=False, width_ratios=[1.4, *[1] * first])
    for row, text in zip(axes, chosen, strict=True):
        wrapped = textwrap.fill(pairing.texts.strings[text], 24)
        row[0].text(0, 0.5, wrapped, va="center", fontsize=9, parse_math=False)
        row[0].axis("off")
        found = np.argsort(-scores[:, text], kind="stable")[:first]
        for place in range(first):
            axis = row[place + 1]
            axis.set(xticks=[], yticks=[])
            if place >= len(found):
                axis.axis("off")
                continue
            image = int(found[place])
            axis.imshow(pairing.visuals.open(image))
            colour = _colour(pairing, image, int(text), "lightgrey")
            for spine in axis.spines.values():
                spine.set(color=colour, linewidth=1 if colour == "lightgrey" else 4)
            axis.set_xlabel(f"{scores[image, text]:.2f}", fontsize=8)
    _save(figure, file)


def draw_found_texts(
    scores: Floats, pairing: Pairing, file: Path, *, queries: int = 4, first: int = 5, seed: int = 0
) -> None:
    """Draw randomly chosen images with their first texts (dual-path, Fig. 10).

    Matches are green, other texts that are true blue, the rest red.
    """
    from matplotlib.figure import Figure

    chosen = _chosen(len(pairing.visuals), queries, seed)
    figure = Figure(figsize=(9.5, 2.3 * len(chosen)), layout="constrained")
    axes = figure.subplots(len(chosen), 2, squeeze=False, width_ratios=[1, 3])
    for (left, right), image in zip(axes, chosen, strict=True):
        left.imshow(pairing.visuals.open(int(image)))
        left.axis("off")
        right.set(xlim=(0, 1), ylim=(0, first))
        right.axis("off")
        for place, text in enumerate(np.argsort(-np.asarray(scores[image]), kind="stable")[:first].tolist()):
            wrapped = textwrap.fill(textwrap.shorten(pairing.texts.strings[text], 150), 76)
            colour = _colour(pairing, int(image), text, "tab:red")
            line = f"{scores[image, text]:.2f}  {wrapped}"
            right.text(0, first - place - 0.5, line, va="center", fontsize=8.5, color=colour, parse_math=False)
    _save(figure, file)


def _chosen(items: int, queries: int, seed: int) -> Ints:
    return np.random.default_rng(seed).choice(items, min(queries, items), replace=False)


def _colour(pairing: Pairing, image: int, text: int, other: str) -> str:
    if text in pairing.matches.texts_of(image):
        return "tab:green"
    true = pairing.also_true is not None and text in pairing.also_true.texts_of(image)
    return "tab:blue" if true else other


def _save(figure: Figure, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=80)
