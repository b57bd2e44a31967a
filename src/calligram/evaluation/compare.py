"""Paired comparison of two runs: metrics, a sign test over queries, and sheets of what each run finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps

from calligram.data.matches import Matches
from calligram.data.pairing import Pairing
from calligram.data.pictures import PictureError
from calligram.data.pictures import font as letters
from calligram.data.summary import CELL_COLOUR, FAINT_COLOUR, SHEET_COLOUR, TEXT_COLOUR
from calligram.evaluation.recall import DirectionMetrics, relevant_ranks, retrieval_metrics

Floats = NDArray[np.floating]
Ints = NDArray[np.int64]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

RECALL_RANKS = (1, 5, 10)
"""the k of R@k"""
SHOWN_ITEMS = 5
"""items that a sheet shows for each query and run; a query is on a sheet if only one run has a match among them"""
BATCH_IMAGES = 128
"""images of the random batch in which an online negative is the hardest"""
LABEL_WIDTH, PICTURE_WIDTH, PICTURE_HEIGHT, GAP, MARGIN = 200, 190, 150, 14, 24
"""layout of a sheet in pixels"""
FONT_SIZE, LINE_HEIGHT, QUERY_FONT_SIZE = 15, 20, 18
SHEET_WIDTH = LABEL_WIDTH + SHOWN_ITEMS * (PICTURE_WIDTH + GAP)
"""width of a sheet without its margins"""
MATCH_COLOUR, TRUE_COLOUR, ONLINE_COLOUR, OFFLINE_COLOUR = "#1a7f37", "#0969da", "#bc6c00", "#cf222e"
"""colours of matches, of other true pairs, and of the negatives of a batch and of the whole split"""


@dataclass(frozen=True)
class DirectionComparison:
    """Two runs in one direction of retrieval, query by query."""

    queries: Ints
    """(Q,) rows of the queries that have a match"""
    ranks: tuple[Ints, Ints]
    """(Q,) rank of the first match of each query, for each run"""
    metrics: tuple[DirectionMetrics, DirectionMetrics]

    def found_by_one(self, k: int) -> tuple[Ints, Ints]:
        """Return the queries whose match only the first run, and only the second run, has among its first k items."""
        first, second = (ranks <= k for ranks in self.ranks)
        return self.queries[first & ~second], self.queries[second & ~first]

    def better_ranked(self) -> tuple[int, int]:
        """Return the numbers of queries whose match has a better rank in the first run, and in the second run."""
        first, second = self.ranks
        return int((first < second).sum()), int((second < first).sum())

    def rank_of(self, query: int) -> tuple[int, int]:
        """Return the rank of the first match of a query, for each run."""
        place = int(np.searchsorted(self.queries, query))
        return int(self.ranks[0][place]), int(self.ranks[1][place])

    def as_dict(self) -> dict[str, object]:
        """Return JSON values."""
        one, two = (asdict(found) for found in self.metrics)
        better = self.better_ranked()
        only = {k: tuple(len(found) for found in self.found_by_one(k)) for k in RECALL_RANKS}
        return {
            "first": one,
            "second": two,
            "difference": {name: two[name] - one[name] for name in one if name != "queries"},
            "found_by_one": {str(k): {"first": a, "second": b, "p": sign_test(a, b)} for k, (a, b) in only.items()},
            "better_ranked": {"first": better[0], "second": better[1], "p": sign_test(*better)},
        }


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


def sign_test(first: int, second: int) -> float:
    """Return the two-sided p-value of the sign test: how likely so uneven counts are if both runs are equally good.

    Queries that do not distinguish the runs do not count. Over queries that only one run finds it is McNemar's exact
    test.
    """
    from scipy.special import bdtr

    total = first + second
    return min(1.0, 2 * float(bdtr(min(first, second), total, 0.5))) if total else 1.0


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
            blocks.append(_paragraph(f"\n“{pairing.texts.strings[text]}”", SHEET_WIDTH, QUERY_FONT_SIZE))
            for run, rank in enumerate(found.rank_of(text)):
                columns = scores[run][:, text]
                items = [
                    _ShownItem(image, f"{columns[image]:.2f}", _mark(pairing, image, text))
                    for image in _first_items(columns)
                ]
                blocks.append(_picture_row(pairing, f"{names[run]}\nmatch at rank {rank}", items))
    _save_sheet(blocks, file)


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
                heading = _paragraph(f"{names[run]}\nmatch at rank {rank}", width, FONT_SIZE, FAINT_COLOUR)
                parts.append(_stacked([heading, _text_list(pairing, items, width)]))
            blocks.append(_side_by_side(parts, 2 * GAP))
    _save_sheet(blocks, file)


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
        blocks.append(_side_by_side([_cell(pairing, image, LABEL_WIDTH), _text_list(pairing, shown, width, 180)]))
    _save_sheet(blocks, file)


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
    return _paragraph(text, SHEET_WIDTH, FONT_SIZE, FAINT_COLOUR)


def _title(text: str) -> Image.Image:
    return _paragraph(text, SHEET_WIDTH, QUERY_FONT_SIZE, "#ffffff", "#57606a")


def _paragraph(
    text: str, width: int, size: int, colour: str = TEXT_COLOUR, ground: str = SHEET_COLOUR, lines: int = 4
) -> Image.Image:
    """Return a text in lines that fit the width; a text of more lines is cut."""
    font, high, edge = letters(size), round(1.35 * size), 0 if ground == SHEET_COLOUR else 8
    shown = _wrapped(text, font, width - 2 * edge, lines)
    drawn = Image.new("RGB", (width, len(shown) * high + 2 * edge), ground)
    for number, line in enumerate(shown):
        ImageDraw.Draw(drawn).text((edge, edge + number * high), line, fill=colour, font=font)
    return drawn


def _wrapped(text: str, font: Font, width: int, lines: int) -> list[str]:
    """Return the lines of a text, broken between words, and within a word that is longer than a line."""
    found: list[str] = []
    for paragraph in text.split("\n"):
        found.append("")
        for word in paragraph.split():
            if found[-1] and font.getlength(f"{found[-1]} {word}") > width:
                found.append("")
            found[-1] += f" {word}" if found[-1] else word
            while font.getlength(found[-1]) > width:
                fits = next(n for n in range(len(found[-1]) - 1, 0, -1) if font.getlength(found[-1][:n]) <= width)
                found[-1:] = [found[-1][:fits], found[-1][fits:]]
    return found if len(found) <= lines else [*found[: lines - 1], _fitted(f"{found[lines - 1]} …", font, width)]


def _fitted(line: str, font: Font, width: int) -> str:
    """Return a line, cut where it is too long."""
    if font.getlength(line) <= width:
        return line
    line = line.removesuffix(" …")
    while line and font.getlength(f"{line}…") > width:
        line = line[:-1]
    return f"{line}…"


def _cell(pairing: Pairing, image: int, width: int = PICTURE_WIDTH, item: _ShownItem | None = None) -> Image.Image:
    """Return an image in a cell, with a frame in the colour of the item and its note below."""
    below = 0 if item is None else LINE_HEIGHT
    drawn = Image.new("RGB", (width, PICTURE_HEIGHT + below), SHEET_COLOUR)
    pen, font, edge = ImageDraw.Draw(drawn), letters(FONT_SIZE - 2), 6
    colour = item.colour if item is not None else ""
    pen.rectangle((0, 0, width - 1, PICTURE_HEIGHT - 1), fill=CELL_COLOUR)
    try:
        inner = width - 2 * edge, PICTURE_HEIGHT - 2 * edge
        picture = ImageOps.contain(pairing.visuals.open(image), inner, Image.Resampling.LANCZOS)
    except PictureError:
        pen.text((width // 2, PICTURE_HEIGHT // 2), "no picture", fill=FAINT_COLOUR, font=font, anchor="mm")
    else:
        left, top = (width - picture.width) // 2, (PICTURE_HEIGHT - picture.height) // 2
        if colour:
            frame = (left - edge, top - edge, left + picture.width + edge - 1, top + picture.height + edge - 1)
            pen.rectangle(frame, fill=colour)
        drawn.paste(picture, (left, top))
    if item is not None:
        note = _fitted(item.note, font, width)
        pen.text((width // 2, PICTURE_HEIGHT + 3), note, fill=colour or FAINT_COLOUR, font=font, anchor="ma")
    return drawn


def _picture_row(pairing: Pairing, label: str, items: Sequence[_ShownItem]) -> Image.Image:
    """Return a label with images to its right."""
    cells = [_cell(pairing, item.row, item=item) for item in items]
    return _side_by_side([_paragraph(label, LABEL_WIDTH, FONT_SIZE, lines=8), *cells])


def _text_list(pairing: Pairing, items: Sequence[_ShownItem], width: int, note: int = 48) -> Image.Image:
    """Return texts below each other, with their notes in a column of ``note`` pixels."""
    rows = [
        _side_by_side(
            [
                _paragraph(item.note, note, FONT_SIZE - 2, item.colour or FAINT_COLOUR),
                _paragraph(
                    pairing.texts.strings[item.row], width - note - GAP, FONT_SIZE, item.colour or TEXT_COLOUR, lines=3
                ),
            ]
        )
        for item in items
    ]
    return _stacked(rows, 6)


def _side_by_side(parts: Sequence[Image.Image], gap: int = GAP) -> Image.Image:
    size = sum(part.width for part in parts) + gap * (len(parts) - 1), max(part.height for part in parts)
    drawn, x = Image.new("RGB", size, SHEET_COLOUR), 0
    for part in parts:
        drawn.paste(part, (x, 0))
        x += part.width + gap
    return drawn


def _stacked(parts: Sequence[Image.Image], gap: int = GAP, margin: int = 0) -> Image.Image:
    size = max(part.width for part in parts), sum(part.height for part in parts) + gap * (len(parts) - 1)
    drawn, y = Image.new("RGB", (size[0] + 2 * margin, size[1] + 2 * margin), SHEET_COLOUR), margin
    for part in parts:
        drawn.paste(part, (margin, y))
        y += part.height + gap
    return drawn


def _save_sheet(blocks: Sequence[Image.Image], file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    _stacked(blocks, margin=MARGIN).save(file)
