"""Paired comparison of two runs: metrics, a sign test over queries or phrases, and sheets of what each run finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from calligram.data.boxes import iou
from calligram.data.collection import Collection
from calligram.data.grounding import phrase_texts
from calligram.data.matches import Matches
from calligram.data.pairing import Pairing
from calligram.data.sheet import (
    FAINT_COLOUR,
    FONT_SIZE,
    TEXT_COLOUR,
    paragraph,
    picture_cell,
    save_sheet,
    side_by_side,
    stacked,
    with_boxes,
)
from calligram.evaluation.localization import (
    LoadedPhrases,
    Localization,
    LocalizedPhrases,
    summarise_localization,
)
from calligram.evaluation.recall import RECALL_RANKS, DirectionMetrics, PairedRanks, relevant_ranks, retrieval_metrics
from calligram.files import replace_file

Floats = NDArray[np.floating]
Ints = NDArray[np.int64]

SHOWN_ITEMS = 5
"""items that a sheet shows for each query and run; a query is on a sheet if only one run has a match among them"""
BATCH_IMAGES = 128
"""images of the random batch in which an online negative is the hardest"""
LABEL_WIDTH, PICTURE_WIDTH, PICTURE_HEIGHT, GAP, QUERY_FONT_SIZE = 200, 190, 150, 14, 18
"""layout of a sheet in pixels"""
SHEET_WIDTH = LABEL_WIDTH + SHOWN_ITEMS * (PICTURE_WIDTH + GAP)
"""width of a sheet without its margins"""
MATCH_COLOUR, TRUE_COLOUR, ONLINE_COLOUR, OFFLINE_COLOUR = "#1a7f37", "#0969da", "#bc6c00", "#cf222e"
"""colours of matches, of other true pairs, and of the negatives of a batch and of the whole split"""


@dataclass(frozen=True)
class DirectionComparison(PairedRanks):
    """Two runs in one direction of retrieval, query by query."""

    metrics: tuple[DirectionMetrics, DirectionMetrics]

    def as_dict(self) -> dict[str, object]:
        """Return JSON values."""
        one, two = (asdict(found) for found in self.metrics)
        difference = {name: two[name] - one[name] for name in one if name != "queries"}
        return {"first": one, "second": two, "difference": difference, **self.counts()}


@dataclass(frozen=True)
class PhraseComparison(PairedRanks):
    """Two runs that localize the phrases of a split, phrase by phrase; ``queries`` are all phrases."""

    metrics: tuple[Localization, Localization]
    boxes: tuple[Floats, Floats]
    """(P, 4) the box that each run selects for each phrase"""
    loaded: LoadedPhrases

    @classmethod
    def of(
        cls, loaded: tuple[LoadedPhrases, LoadedPhrases], found: tuple[LocalizedPhrases, LocalizedPhrases]
    ) -> PhraseComparison:
        """Compare two runs; each has its own proposals, and both have the same phrases."""
        (of_first, of_second), (one, two) = loaded, found
        if not np.array_equal(of_first.phrases, of_second.phrases):
            raise ValueError("the runs have different phrases")
        metrics = summarise_localization(one, of_first), summarise_localization(two, of_second)
        return cls(np.arange(len(one.ranks)), (one.ranks, two.ranks), metrics, (one.boxes, two.boxes), of_first)

    def as_dict(self) -> dict[str, object]:
        """Return JSON values."""
        one, two = self.metrics
        difference = {f"r{k}": getattr(two, f"r{k}") - getattr(one, f"r{k}") for k in RECALL_RANKS}
        return {"first": one.as_dict(), "second": two.as_dict(), "difference": difference, **self.counts()}


@dataclass(frozen=True)
class RunComparison:
    """Two runs on the same images and texts. Differences are the second run minus the first run."""

    i2t: DirectionComparison
    t2i: DirectionComparison

    @property
    def rsums(self) -> tuple[float, float]:
        """Sum of the six recalls of each run."""
        one, two = (self.i2t.metrics[run].rsum + self.t2i.metrics[run].rsum for run in (0, 1))
        return one, two

    def as_dict(self) -> dict[str, object]:
        """Return JSON values."""
        one, two = self.rsums
        rsum = {"first": one, "second": two, "difference": two - one}
        return {"i2t": self.i2t.as_dict(), "t2i": self.t2i.as_dict(), "rsum": rsum}


def compare_scores(first: Floats, second: Floats, matches: Matches) -> RunComparison:
    """Compare the scores (I, T) of two runs on the same images and texts."""
    return RunComparison(
        _compare_direction(first, second, matches),
        _compare_direction(np.asarray(first).T, np.asarray(second).T, matches.T),
    )


def _compare_direction(first: Floats, second: Floats, matches: Matches) -> DirectionComparison:
    one, two = relevant_ranks(first, matches), relevant_ranks(second, matches)
    queries = np.flatnonzero(np.diff(one.starts) > 0)
    return DirectionComparison(queries, (one.best, two.best), (retrieval_metrics(one), retrieval_metrics(two)))


class ComparedScores(NamedTuple):
    """The scores (I, T) of two runs on a pairing, with the names of the runs."""

    names: tuple[str, str]
    scores: tuple[Floats, Floats]
    pairing: Pairing


class _ShownItem(NamedTuple):
    """An image or a text of a sheet."""

    row: int
    note: str
    colour: str
    """of the frame of an image, or of the text; empty for an item that is not marked"""


def draw_image_comparison(
    compared: ComparedScores, found: DirectionComparison, file: Path, *, queries: int = 3, seed: int = 0
) -> None:
    """Draw texts whose image only one run finds, with the first images of both runs (aoq, Figs. 5 and 8).

    A green frame marks a match, a blue frame another image for which the text is true.

    Args:
        found: comparison of text-to-image retrieval.
        queries: number of texts for each run, chosen at random.
    """
    names, scores, pairing = compared
    blocks = [_legend("a green frame marks a match", pairing)]
    for title, chosen in _sections(found, names, "texts", queries, seed):
        blocks.append(_title(title))
        for text in chosen:
            blocks.append(paragraph(f"\n“{pairing.texts.strings[text]}”", SHEET_WIDTH, QUERY_FONT_SIZE))
            for run, rank in enumerate(found.rank_of(text)):
                columns = scores[run][:, text]
                items = [
                    _ShownItem(image, f"{columns[image]:.2f}", _mark(pairing, image, text))
                    for image in _first_items(columns)
                ]
                blocks.append(_picture_row(pairing, f"{names[run]}\nmatch at rank {rank}", items))
    save_sheet(blocks, file)


def draw_text_comparison(
    compared: ComparedScores, found: DirectionComparison, file: Path, *, queries: int = 3, seed: int = 0
) -> None:
    """Draw images whose text only one run finds, with the first texts of both runs (aoq, Figs. 5 and 7).

    Matching texts are green, other true texts blue.

    Args:
        found: comparison of image-to-text retrieval.
        queries: number of images for each run, chosen at random.
    """
    names, scores, pairing = compared
    width = (SHEET_WIDTH - LABEL_WIDTH - 4 * GAP) // 2
    blocks = [_legend("a green text is a match", pairing)]
    for title, chosen in _sections(found, names, "images", queries, seed):
        blocks.append(_title(title))
        for image in chosen:
            parts = [_cell(pairing, image, LABEL_WIDTH)]
            for run, rank in enumerate(found.rank_of(image)):
                row = np.asarray(scores[run][image])
                items = [
                    _ShownItem(text, f"{row[text]:.2f}", _mark(pairing, image, text)) for text in _first_items(row)
                ]
                heading = paragraph(f"{names[run]}\nmatch at rank {rank}", width, FONT_SIZE, FAINT_COLOUR)
                parts.append(stacked([heading, _text_list(pairing, items, width)]))
            blocks.append(side_by_side(parts, 2 * GAP))
    save_sheet(blocks, file)


def draw_phrase_comparison(
    collection: Collection,
    names: tuple[str, str],
    found: PhraseComparison,
    file: Path,
    *,
    phrases: int = 8,
    seed: int = 0,
) -> None:
    """Draw phrases that only one run localizes, with the boxes of both runs and the truth (two-branch, Fig. 2).

    Args:
        phrases: number of phrases for each run, chosen at random, each of another image as far as possible.
    """
    colours = (MATCH_COLOUR, ONLINE_COLOUR, TRUE_COLOUR)
    legend = [paragraph(label, 300, FONT_SIZE, c) for label, c in zip(("truth", *names), colours, strict=True)]
    blocks = [side_by_side(legend)]
    width, targets = (SHEET_WIDTH - 3 * GAP) // 4, found.loaded.targets
    strings = phrase_texts(collection, found.loaded.phrases).strings
    for name, only in zip(names, found.found_by_one(1), strict=True):
        blocks.append(_title(f"Only the first box of {name} is right: {len(only)} of {len(found.queries)} phrases"))
        order = np.random.default_rng(seed).permutation(only)
        later = np.ones(len(order), dtype=bool)
        later[np.unique(targets.images[order], return_index=True)[1]] = False
        cells = []
        for phrase in order[np.argsort(later, kind="stable")][:phrases].tolist():
            boxes = np.stack([targets.boxes[phrase], *(own[phrase] for own in found.boxes)])
            opened = partial(_open_with_boxes, collection, int(targets.images[phrase]), boxes, colours)
            picture = picture_cell(opened, (width, width * 3 // 4))
            overlaps = iou(boxes[:1], boxes[1:])[0]
            notes = [
                paragraph(f"{run}: IoU {overlap:.2f}", width, FONT_SIZE - 2, colour, lines=1)
                for run, overlap, colour in zip(names, overlaps, colours[1:], strict=True)
            ]
            cells.append(stacked([picture, paragraph(f"“{strings[phrase]}”", width, FONT_SIZE, lines=2), *notes], 4))
        blocks += [side_by_side(cells[start : start + 4]) for start in range(0, len(cells), 4)]
    save_sheet(blocks, file)


def _open_with_boxes(collection: Collection, image: int, boxes: Floats, colours: Sequence[str]) -> Image.Image:
    return with_boxes(collection.pictures.open(image), boxes, colours)


def draw_negatives(scores: Floats, pairing: Pairing, name: str, file: Path, *, anchors: int = 2, seed: int = 0) -> None:
    """Draw anchors with their matches, online hard negative and offline hard negatives (aoq, Fig. 3).

    The online negative is the hardest of a random batch, the offline negatives are the hardest of the whole split.

    Args:
        scores: (I, T) of one run.
        name: of the run.
        anchors: number of texts and of images that are drawn.
    """
    rng = np.random.default_rng(seed)
    images, texts = _batch(pairing.matches, rng)
    legend = (
        f"{name}: anchors with matches (green), the hardest negative of a random batch of {len(images)} images "
        "(orange), and the hardest other negatives of the split (red); with rank among all negatives, and score"
    )
    blocks = [_legend(legend, pairing)]
    for text in rng.permutation(texts)[:anchors].tolist():
        items = _anchor_items(scores[:, text], pairing.matches.visuals_of(text), images, SHOWN_ITEMS)
        shown = [_recoloured(item, _mark(pairing, item.row, text)) for item in items]
        blocks.append(_picture_row(pairing, f"“{pairing.texts.strings[text]}”", shown))
    for image in rng.permutation(images)[:anchors].tolist():
        own = pairing.matches.texts_of(image)
        items = _anchor_items(np.asarray(scores[image]), own, texts, min(len(own), SHOWN_ITEMS) + 4, SHOWN_ITEMS)
        shown = [_recoloured(item, _mark(pairing, image, item.row)) for item in items]
        width = SHEET_WIDTH - LABEL_WIDTH - GAP
        blocks.append(side_by_side([_cell(pairing, image, LABEL_WIDTH), _text_list(pairing, shown, width, 180)]))
    save_sheet(blocks, file)


def _batch(matches: Matches, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Return the images of a random batch, and one random text of each."""
    captioned = np.flatnonzero(matches.counts()[0])
    images = rng.permutation(captioned)[:BATCH_IMAGES]
    return images, np.array([rng.choice(matches.texts_of(int(image))) for image in images], dtype=np.int64)


def ranked_negatives(values: Floats, own: Ints) -> Ints:
    """Return the rows of all negatives of an anchor, hardest first.

    Args:
        values: (C,) scores of the anchor with all candidates.
        own: rows of its matches.
    """
    rows = np.argsort(-np.asarray(values), kind="stable")
    return rows[~np.isin(rows, own)]


def _anchor_items(values: Floats, own: Ints, batch: Ints, count: int, matches: int = 1) -> list[_ShownItem]:
    """Return up to ``count`` items of an anchor: matches, the hardest negative of the batch, negatives of the split."""
    own = own[np.argsort(-values[own], kind="stable")]
    negatives = ranked_negatives(values, own)
    online = negatives[np.isin(negatives, batch)][:1]
    place = {row: rank for rank, row in enumerate(negatives.tolist(), 1)}
    items = [_ShownItem(int(row), f"match, {values[row]:.2f}", MATCH_COLOUR) for row in own[:matches]]
    rest = negatives[~np.isin(negatives, online)][: max(0, count - len(items) - len(online))]
    for where, rows, colour in (("batch", online, ONLINE_COLOUR), ("split", rest, OFFLINE_COLOUR)):
        items += [_ShownItem(r, f"{where}, rank {place[r]}, {values[r]:.2f}", colour) for r in rows.tolist()]
    return items


def _recoloured(item: _ShownItem, mark: str) -> _ShownItem:
    return item._replace(colour=TRUE_COLOUR) if mark == TRUE_COLOUR else item


def _sections(
    found: DirectionComparison, names: tuple[str, str], what: str, queries: int, seed: int
) -> list[tuple[str, list[int]]]:
    """Return a title and random queries for each run that finds what the other does not."""
    sections = []
    for name, only in zip(names, found.found_by_one(SHOWN_ITEMS), strict=True):
        title = f"Only {name} finds a match among the first {SHOWN_ITEMS}: {len(only)} of {len(found.queries)} {what}"
        sections.append((title, np.random.default_rng(seed).permutation(only)[:queries].tolist()))
    return sections


def _first_items(values: Floats) -> list[int]:
    rows: list[int] = np.argsort(-np.asarray(values), kind="stable")[:SHOWN_ITEMS].tolist()
    return rows


def _mark(pairing: Pairing, image: int, text: int) -> str:
    if text in pairing.matches.texts_of(image):
        return MATCH_COLOUR
    true = pairing.also_true is not None and text in pairing.also_true.texts_of(image)
    return TRUE_COLOUR if true else ""


def _legend(text: str, pairing: Pairing) -> Image.Image:
    if pairing.also_true is not None:
        text += "; blue marks a pair that is true but not annotated"
    return paragraph(text, SHEET_WIDTH, FONT_SIZE, FAINT_COLOUR)


def _title(text: str) -> Image.Image:
    return paragraph(text, SHEET_WIDTH, QUERY_FONT_SIZE, "#ffffff", "#57606a")


def _cell(pairing: Pairing, image: int, width: int = PICTURE_WIDTH, item: _ShownItem | None = None) -> Image.Image:
    """Return an image in a cell, with a frame in the colour of the item and its note below."""
    colour, note = ("", None) if item is None else (item.colour, item.note)
    return picture_cell(lambda: pairing.visuals.open(image), (width, PICTURE_HEIGHT), colour, note)


def _picture_row(pairing: Pairing, label: str, items: Sequence[_ShownItem]) -> Image.Image:
    """Return a label with images to its right."""
    cells = [_cell(pairing, item.row, item=item) for item in items]
    return side_by_side([paragraph(label, LABEL_WIDTH, FONT_SIZE, lines=8), *cells])


def _text_list(pairing: Pairing, items: Sequence[_ShownItem], width: int, note: int = 48) -> Image.Image:
    """Return texts below each other, with their notes in a column of ``note`` pixels."""
    rows = [
        side_by_side(
            [
                paragraph(item.note, note, FONT_SIZE - 2, item.colour or FAINT_COLOUR),
                paragraph(
                    pairing.texts.strings[item.row], width - note - GAP, FONT_SIZE, item.colour or TEXT_COLOUR, lines=3
                ),
            ]
        )
        for item in items
    ]
    return stacked(rows, 6)


def draw_dev_curves(metrics: Mapping[str, Sequence[Mapping[str, Any]]], target: Path) -> Path:
    """Draw the dev R@1 of several runs over their epochs, one panel for each direction (aoq, Fig. 4).

    The metrics of a run are the lines of its ``metrics.jsonl``. Epochs are counted over all stages; for a run with
    rounds over the last round only, as in the paper.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes = figure.subplots(1, 2)
    for name, rows in metrics.items():
        shown = last_round_metrics(rows)
        for axis, key in zip(axes, ("i2t_r1", "t2i_r1"), strict=True):
            axis.plot(range(1, len(shown) + 1), [found[key] for found in shown], ".-", label=name)
    for axis, title in zip(axes, ("texts for images", "images for texts"), strict=True):
        axis.set(title=f"{title}: dev R@1, %", xlabel="epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
    lines = axes[0].get_lines()
    figure.legend(handles=lines, loc="outside upper left", ncols=min(3, len(lines)), frameon=False, fontsize=8)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(target) as partial:
        figure.savefig(partial, dpi=110, format="png")
    return target


def last_round_metrics(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, float]]:
    """Dev metrics of each epoch: of all stages, or of the last round if stage names begin with ``round 1, ``."""
    dev = [row for row in rows if "dev" in row]
    last = dev[-1]["stage"].partition(",")[0] if dev else ""
    return [row["dev"] for row in dev if not last.startswith("round ") or row["stage"].partition(",")[0] == last]
