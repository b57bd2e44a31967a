"""Pictures people would rather look at: queries with what was found for them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np

from calligram.data.pairing import Pairing
from calligram.evaluation.encoding import encode_pairing, load_pairing, score_matrix
from calligram.features.inputs import Inputs
from calligram.models.matcher import Matcher


def draw_sheet(
    matcher: Matcher, inputs: Inputs, pairing: Pairing, file: Path, *, queries: int = 6, first: int = 5, seed: int = 0
) -> None:
    """Draw randomly chosen texts with their first images; a green frame marks a match, a blue one a true image."""
    from matplotlib.figure import Figure

    scores = score_matrix(matcher, encode_pairing(matcher, inputs, load_pairing(inputs, pairing)))
    chosen = np.random.default_rng(seed).choice(len(pairing.texts), min(queries, len(pairing.texts)), replace=False)
    figure = Figure(figsize=(2.6 + 1.9 * first, 1.9 * len(chosen)), layout="constrained")
    axes = figure.subplots(len(chosen), first + 1, squeeze=False, width_ratios=[1.4, *[1] * first])
    for row, text in zip(axes, chosen, strict=True):
        wrapped = textwrap.fill(pairing.texts.strings[text], 24)
        row[0].text(0, 0.5, wrapped, va="center", fontsize=9)
        row[0].axis("off")
        found = np.argsort(-scores[:, text], kind="stable")[:first]
        matching = set(pairing.matches.visuals_of(int(text)).tolist())
        true = set(pairing.also_true.visuals_of(int(text)).tolist()) if pairing.also_true else set()
        for place in range(first):
            axis = row[place + 1]
            axis.set(xticks=[], yticks=[])
            if place >= len(found):
                axis.axis("off")
                continue
            image = int(found[place])
            axis.imshow(pairing.visuals.open(image))
            colour = "tab:green" if image in matching else "tab:blue" if image in true else "lightgrey"
            for spine in axis.spines.values():
                spine.set(color=colour, linewidth=1 if colour == "lightgrey" else 4)
            axis.set_xlabel(f"{scores[image, text]:.2f}", fontsize=8)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=80)
