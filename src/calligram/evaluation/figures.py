"""Figures of an evaluation: retrieved items, correlations of features, sheets of suggestions, and a t-SNE map."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageOps

from calligram.data.collection import Collection
from calligram.data.matches import Matches
from calligram.data.pairing import Pairing, Visuals
from calligram.data.pictures import PictureError
from calligram.data.sheet import CELL_COLOUR, FAINT_COLOUR, FONT_SIZE, LINE_HEIGHT, SHEET_COLOUR, TEXT_COLOUR, letters
from calligram.data.summary import CELL_GAP, CELL_HEIGHT, CELL_WIDTH, SHEET_MARGIN
from calligram.evaluation.distributions import cross_ranks, draw_cross_ranks, draw_overlap
from calligram.evaluation.recall import EncodedPairing, encode_pairing, load_pairing, score_matrix
from calligram.evaluation.retrieval import overlap_of
from calligram.evaluation.suggest import Suggestion
from calligram.features.images.backbones import Backbone, BackboneInput, pixel_input
from calligram.features.inputs import Inputs
from calligram.files import replace_file
from calligram.models.matcher import Matcher
from calligram.progress import Track, silent
from calligram.vectors import unit_length, unit_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Features = NDArray[np.float64]
ImageVectors = NDArray[np.float32]
Floats = NDArray[np.floating]
Ints = NDArray[np.int64]

SAMPLE_IMAGES = 100
"""number of random images whose features are compared, as in the paper"""
BATCH_PICTURES = 64
"""pictures that go through a backbone in one batch"""
MAX_MAP_IMAGES = 1000
"""largest number of images in a t-SNE map; more take minutes and show less"""
SHEET_COLUMNS, SUGGESTION_LINES = 5, 3
"""columns of a sheet of suggestions, and lines of text under an image"""


def draw_sheet(
    matcher: Matcher, inputs: Inputs, pairing: Pairing, file: Path, *, queries: int = 6, first: int = 5, seed: int = 0
) -> None:
    """Encode a pairing and draw random texts with their first images; see ``draw_found_images``."""
    scores = score_matrix(matcher, encode_pairing(matcher, inputs, load_pairing(inputs, pairing)))
    draw_found_images(scores, pairing, file, queries=queries, first=first, seed=seed)


def draw_found_images(
    scores: Floats, pairing: Pairing, file: Path, *, queries: int = 6, first: int = 5, seed: int = 0
) -> None:
    """Draw random texts with their first images (dual-path, Fig. 9).

    A green frame marks a matching image (of the same person, where items match by identity). A blue frame marks another
    image for which the text is true.
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
    """Draw random images with their first texts (dual-path, Fig. 10).

    Matching texts are green, other true texts blue, false texts red.
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
    with replace_file(file, keep_suffix=True) as partial:
        figure.savefig(partial, dpi=80)


def correlation(vectors: NDArray[np.floating]) -> Features:
    """Return Pearson's correlation between the features of every two images, (N, D) to (N, N) (dual-path, Fig. 4).

    The correlation of a constant vector is undefined; it is set to 0, and to 1 with itself.
    """
    centred = np.asarray(vectors, dtype=np.float64)
    centred = centred - centred.mean(axis=1, keepdims=True)
    centred = unit_rows(centred)
    found: Features = np.clip(centred @ centred.T, -1, 1)
    np.fill_diagonal(found, 1)
    return found


def mean_absolute_correlation(correlations: Features) -> float:
    """Return the mean absolute correlation between different images; 0 for orthogonal features."""
    different = ~np.eye(len(correlations), dtype=bool)
    return float(np.abs(correlations[different]).mean()) if different.any() else 0.0


def draw_correlation(panels: Mapping[str, Features], file: Path) -> None:
    """Draw correlation matrices next to each other, with their names."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(0.9 + 3.6 * len(panels), 3.6), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (name, values) in zip(axes, panels.items(), strict=True):
        shown = axis.imshow(values, vmin=-1, vmax=1, cmap="RdBu_r", interpolation="nearest")
        axis.set(xticks=[], yticks=[])
        axis.set_title(f"{name}\nmean absolute {mean_absolute_correlation(values):.3f}", fontsize=9)
    figure.colorbar(shown, ax=axes, shrink=0.85)
    file.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(file, keep_suffix=True) as partial:
        figure.savefig(partial, dpi=110)


def sample_images(images: int, seed: int = 0) -> Ints:
    """Return the rows of the images whose features are compared, ascending."""
    chosen = np.random.default_rng(seed).choice(images, min(SAMPLE_IMAGES, images), replace=False)
    return np.sort(chosen).astype(np.int64)


def draw_pictures(
    matcher: Matcher,
    encoded: EncodedPairing,
    scores: Floats,
    pairing: Pairing,
    folder: Path,
    *,
    before: Floats | None = None,
    track: Track = silent,
) -> list[Path]:
    """Draw the figures of an evaluation into ``folder``.

    They are ``images.png``, ``texts.png``, ``ranks.png``, ``overlap.png`` (if there are pairs of both kinds),
    ``correlation.png`` and ``map.png`` (t-SNE of the vectors).

    Args:
        before: (N, D) features of the images of ``sample_images`` before training, for comparison.
    """
    apart = overlap_of(matcher, scores, pairing)
    vectors = encoded.images.vectors[sample_images(len(pairing.visuals))].float().cpu().numpy()
    panels = {} if before is None else {"features of the backbone before training": correlation(before)}
    panels["features of this matcher"] = correlation(vectors)
    figures: dict[str, Callable[[Path], object]] = {
        "images.png": lambda file: draw_found_images(scores, pairing, file),
        "texts.png": lambda file: draw_found_texts(scores, pairing, file),
        "ranks.png": lambda file: draw_cross_ranks({"this matcher": cross_ranks(scores, pairing.matches)}, file),
        **({"overlap.png": lambda file: draw_overlap(apart, file)} if apart is not None else {}),
        "correlation.png": lambda file: draw_correlation(panels, file),
        "map.png": lambda file: draw_map(encoded, pairing.matches, file, "t-SNE of images and texts"),
    }
    for name, draw in track(list(figures.items()), "drawing", len(figures)):
        draw(folder / name)
    return [folder / name for name in figures]


def untrained_features(settings: Mapping[str, Any], inputs: Inputs, visuals: Visuals) -> ImageVectors | None:
    """Return image features (N, D) of a run's backbone before training; None without a backbone or without its folder.

    Args:
        settings: of ``run.json``; they name the folder of a trained backbone.
    """
    source = inputs.images if inputs.images.network is not None else _load_backbone(settings)
    if source is None:
        return None
    pictures = [visuals.open(index) for index in range(len(visuals))]
    batches = range(0, len(pictures), BATCH_PICTURES)
    parts = [source.images(pictures[first : first + BATCH_PICTURES]) for first in batches]
    found = torch.cat(parts).float()
    vectors: ImageVectors = (found.mean(1) if found.ndim == 3 else found).numpy()
    return vectors


def _load_backbone(settings: Mapping[str, Any]) -> BackboneInput | None:
    image = settings.get("image")
    name = image.get("backbone", "") if isinstance(image, Mapping) else ""
    if not name or not Path(name).is_dir():
        return None
    return BackboneInput(Backbone.load(name), pixel_input(name), Path(name).name)


def draw_suggestions(collection: Collection, chosen: Sequence[Suggestion], file: Path, track: Track = silent) -> None:
    """Draw images to caption on one sheet, in order, each with its number, its id and the reasons."""
    columns, tall = max(1, min(SHEET_COLUMNS, len(chosen))), CELL_HEIGHT + SUGGESTION_LINES * LINE_HEIGHT + 12
    lines = max(1, -(-len(chosen) // columns))
    size = (
        2 * SHEET_MARGIN + columns * (CELL_WIDTH + CELL_GAP) - CELL_GAP,
        2 * SHEET_MARGIN + lines * (tall + CELL_GAP) - CELL_GAP,
    )
    sheet = Image.new("RGB", size, SHEET_COLOUR)
    draw, font = ImageDraw.Draw(sheet), letters(FONT_SIZE)
    for place, suggestion in track(list(enumerate(chosen)), "drawing", len(chosen)):
        left, top = (
            SHEET_MARGIN + place % columns * (CELL_WIDTH + CELL_GAP),
            SHEET_MARGIN + place // columns * (tall + CELL_GAP),
        )
        draw.rectangle((left, top, left + CELL_WIDTH - 1, top + CELL_HEIGHT - 1), fill=CELL_COLOUR)
        try:
            picture = ImageOps.contain(collection.pictures.open(suggestion.row), (CELL_WIDTH, CELL_HEIGHT))
        except PictureError:
            draw.text(
                (left + CELL_WIDTH // 2, top + CELL_HEIGHT // 2),
                "no picture",
                fill=FAINT_COLOUR,
                font=font,
                anchor="mm",
            )
        else:
            sheet.paste(picture, (left + (CELL_WIDTH - picture.width) // 2, top + (CELL_HEIGHT - picture.height) // 2))
        draw.text((left, top + CELL_HEIGHT + 8), f"{place + 1}  {suggestion.image[-30:]}", fill=TEXT_COLOUR, font=font)
        for line, words in enumerate(textwrap.wrap(suggestion.why, 38)[: SUGGESTION_LINES - 1]):
            draw.text((left, top + CELL_HEIGHT + 8 + (line + 1) * LINE_HEIGHT), words, fill=FAINT_COLOUR, font=font)
    file.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(file, keep_suffix=True) as partial:
        sheet.save(partial)


def tsne_layout(vectors: ImageVectors, seed: int = 0) -> ImageVectors:
    """Return positions (N, 2) of vectors (N, D) by t-SNE over cosines (van der Maaten and Hinton, 2008)."""
    from sklearn.manifold import TSNE

    # The perplexity must be far below the number of vectors; scikit-learn refuses other values.
    perplexity = min(30.0, max(1.0, (len(vectors) - 1) / 3))
    places = TSNE(metric="cosine", init="random", perplexity=perplexity, random_state=seed).fit_transform(vectors)
    return np.asarray(places, dtype=np.float32)


def draw_map(encoded: EncodedPairing, matches: Matches, target: Path, title: str = "") -> Path:
    """Draw a t-SNE map of images (blue), each joined by a line to one of its texts (red) (a3vse, Fig. 3).

    Images without a text are left out.
    """
    from matplotlib.figure import Figure

    image, text = matches.pairs()
    _, first = np.unique(image, return_index=True)
    image, text = image[first][:MAX_MAP_IMAGES], text[first][:MAX_MAP_IMAGES]
    vectors = [
        unit_length(side.vectors).cpu().numpy()[rows] for side, rows in ((encoded.images, image), (encoded.texts, text))
    ]
    places = tsne_layout(np.concatenate(vectors))
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
    with replace_file(target, keep_suffix=True) as partial:
        figure.savefig(partial, dpi=110)
    return target
