"""Statistics of a collection, and a sheet of sample images with their captions, for ``calligram info``."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageOps

from calligram.data.collection import Collection
from calligram.data.draft import Problem, summarise_problems
from calligram.data.pictures import PictureError
from calligram.data.sheet import CELL_COLOUR, FAINT_COLOUR, FONT_SIZE, LINE_HEIGHT, SHEET_COLOUR, TEXT_COLOUR, letters
from calligram.files import content_hash
from calligram.progress import Track, silent
from calligram.text import HYPHENATED_WORD, caption_key

Ints = NDArray[np.int64]

# Layout of the sample sheet; lengths are in pixels.
SHEET_COLUMNS = 4
CELL_WIDTH, CELL_HEIGHT, CELL_GAP, SHEET_MARGIN = 300, 260, 26, 32
CAPTION_LINES = 5
PHRASE_COLOURS = ("#e6484f", "#2f7ed8", "#2a9d5c", "#e08a1e", "#8a4fd0", "#12a5a5")
GroundedSpan = tuple[int, int, NDArray[np.float64]]
"""start and end of a phrase in its caption, and its boxes (N, 4)"""


class Quartiles(NamedTuple):
    """Minimum, quartiles and maximum of numbers; all zero when there are no numbers."""

    minimum: float
    first_quartile: float
    median: float
    third_quartile: float
    maximum: float

    def __str__(self) -> str:
        return f"{self.minimum:g} to {self.maximum:g}, median {self.median:g}"


@dataclass(frozen=True)
class CollectionSummary:
    """Statistics of a collection. Splits are ordered train, dev, test, others; ``""`` counts images without a split."""

    name: str
    counts: dict[str, int]
    """number of rows of each table: images, captions, regions, phrases, ..."""
    images_in_split: dict[str, int]
    captions_in_split: dict[str, int]
    captions_of_image: Quartiles
    words_in_caption: Quartiles
    vocabulary: int
    """number of distinct words, in lower case"""
    identities: int
    grounded_phrases: int
    widths: Quartiles
    heights: Quartiles
    without_captions: int
    without_picture: int
    features: dict[str, tuple[int, ...]]
    """shape of the features of one image, by array"""
    repeated_captions: int
    """number of captions with the same words as an earlier one"""
    same_pictures: list[tuple[str, ...]]
    """ids of images whose files are equal byte for byte"""
    metadata: dict[str, dict[str, int]]
    """metadata columns of images and of captions, and the number of rows with a value"""
    problems: list[str]
    """one line for each kind of problem"""

    def lines(self) -> list[str]:
        """The statistics as text, one per line; statistics of missing parts are left out."""
        shown = {name: count for name, count in self.counts.items() if name not in ("matches", "groundings")}
        splits = [
            f"{name or 'without a split'} {count:,} ({self.captions_in_split.get(name, 0):,} captions)"
            for name, count in self.images_in_split.items()
        ]
        facts = [
            f"{self.name}: " + ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in shown.items()),
            "splits: " + ", ".join(splits),
            f"captions of an image: {self.captions_of_image}",
            f"words in a caption: {self.words_in_caption}; {self.vocabulary:,} different words",
            f"pictures: width {self.widths}, height {self.heights}",
        ]
        facts += [f"images without captions: {self.without_captions:,}"] * bool(self.without_captions)
        facts += [f"images without a picture: {self.without_picture:,}"] * bool(self.without_picture)
        facts += [f"identities: {self.identities:,}"] * bool(self.identities)
        facts += [f"phrases with a box: {self.grounded_phrases:,}"] * bool(self.grounded_phrases)
        facts += [f"captions that repeat another: {self.repeated_captions:,}"] * bool(self.repeated_captions)
        facts += [f"the same picture: {' = '.join(ids)}" for ids in self.same_pictures[:5]]
        facts += [f"... {len(self.same_pictures) - 5:,} more such groups"] * (len(self.same_pictures) > 5)
        facts += [f"stored features {name}: {' x '.join(map(str, s))} an image" for name, s in self.features.items()]
        for of, columns in self.metadata.items():
            listed = ", ".join(f"{name} {count:,}" for name, count in columns.items())
            facts += [f"metadata of {of} (how many have a value): {listed}"] * bool(listed)
        return facts + [f"problem: {line}" for line in self.problems]


def summarise_collection(collection: Collection, track: Track = silent) -> CollectionSummary:
    """Compute the statistics of a collection. Reads the bytes of every picture once."""
    captions = [str(text) for text in collection.column("captions", "text")]
    matches = collection.numbers("matches", "image"), collection.numbers("matches", "caption")
    images = len(collection.table("images"))
    per_image = np.bincount(matches[0], minlength=images)
    words = [HYPHENATED_WORD.findall(text.lower()) for text in captions]
    identity = collection.numbers("images", "identity")
    return CollectionSummary(
        name=collection.name,
        counts=_table_counts(collection),
        images_in_split=_in_split_order(collection.splits()),
        captions_in_split=_captions_in_split(collection, *matches),
        captions_of_image=quartiles(per_image),
        words_in_caption=quartiles(np.array([len(w) for w in words])),
        vocabulary=len({word for w in words for word in w}),
        identities=len(np.unique(identity[identity >= 0])),
        grounded_phrases=len(np.unique(collection.numbers("groundings", "phrase"))),
        widths=quartiles(_known_values(collection, "width")),
        heights=quartiles(_known_values(collection, "height")),
        without_captions=int((per_image == 0).sum()),
        without_picture=sum(path is None for path in collection.column("images", "path")),
        features={name: stored.row_shape for name, stored in collection.features.items()},
        repeated_captions=len(captions) - len({caption_key(text) for text in captions}),
        same_pictures=find_same_pictures(collection, track),
        metadata=_metadata_counts(collection),
        problems=_problem_lines(collection),
    )


def quartiles(values: Ints) -> Quartiles:
    """Quartiles of ``values``.

    >>> quartiles(np.array([1, 2, 3, 4, 9]))
    Quartiles(minimum=1.0, first_quartile=2.0, median=3.0, third_quartile=4.0, maximum=9.0)
    """
    if not len(values):
        return Quartiles(0, 0, 0, 0, 0)
    return Quartiles(*(float(v) for v in np.quantile(values, [0, 0.25, 0.5, 0.75, 1])))


def find_same_pictures(collection: Collection, track: Track = silent) -> list[tuple[str, ...]]:
    """Groups of image ids whose files are equal byte for byte; missing pictures are left out."""
    ids = [str(i) for i in collection.column("images", "id")]
    groups: dict[str, list[str]] = {}
    for row, path in track(enumerate(collection.column("images", "path")), "comparing pictures", len(ids)):
        if path is None:
            continue
        try:
            digest = content_hash(collection.pictures.read(row), 16)
        except PictureError:
            continue
        groups.setdefault(digest, []).append(ids[row])
    return [tuple(group) for group in groups.values() if len(group) > 1]


def _table_counts(collection: Collection) -> dict[str, int]:
    names = ("images", "captions", "matches", "regions", "phrases", "groundings", "also_true")
    return {name: len(collection.table(name)) for name in names if collection.has(name)}


def _in_split_order(counts: dict[str, int]) -> dict[str, int]:
    known = [name for name in ("train", "dev", "test") if name in counts]
    others = sorted(name for name in counts if name not in known and name)
    return {name: counts[name] for name in [*known, *others, *([""] if "" in counts else [])]}


def _captions_in_split(collection: Collection, images: Ints, captions: Ints) -> dict[str, int]:
    splits = [str(s or "") for s in collection.column("images", "split")]
    pairs = {(splits[int(image)], int(caption)) for image, caption in zip(images, captions, strict=True)}
    return _in_split_order(dict(Counter(split for split, _ in pairs)))


def _known_values(collection: Collection, column: str) -> Ints:
    values = collection.numbers("images", column)
    return values[values >= 0]


def _metadata_counts(collection: Collection) -> dict[str, dict[str, int]]:
    own = {"images": collection.metadata_columns, "captions": collection.caption_metadata_columns}
    tables = {of: collection.table(of) for of in own}
    return {of: {n: len(tables[of]) - tables[of].column(n).null_count for n in names} for of, names in own.items()}


def _problem_lines(collection: Collection) -> list[str]:
    found = [
        Problem(str(r["kind"]), str(r["item"]), str(r["detail"]), bool(r["skipped"]))
        for r in collection.table("problems").to_pylist()
    ]
    return summarise_problems(found)


def sample_sheet(collection: Collection, path: Path, count: int = 12, seed: int = 0) -> None:
    """Write a PNG with ``count`` random images and up to two captions each; images with captions have priority.

    Boxes of phrases have the same colours as the words of the phrases.
    """
    rows = _sample_rows(collection, count, seed)
    columns = min(SHEET_COLUMNS, len(rows))
    lines = -(-len(rows) // columns)
    height = CELL_HEIGHT + CAPTION_LINES * LINE_HEIGHT + 12
    sheet = Image.new(
        "RGB",
        (
            2 * SHEET_MARGIN + columns * (CELL_WIDTH + CELL_GAP) - CELL_GAP,
            2 * SHEET_MARGIN + lines * (height + CELL_GAP) - CELL_GAP,
        ),
        SHEET_COLOUR,
    )
    for place, row in enumerate(rows):
        left, top = (
            SHEET_MARGIN + place % columns * (CELL_WIDTH + CELL_GAP),
            SHEET_MARGIN + place // columns * (height + CELL_GAP),
        )
        _draw_cell(sheet, collection, int(row), left, top)
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path, format="PNG")


def _sample_rows(collection: Collection, count: int, seed: int) -> list[int]:
    """Random image rows, captioned images first, sorted by row."""
    order = np.random.default_rng(seed).permutation(len(collection.table("images")))
    captioned = np.isin(order, collection.numbers("matches", "image"))
    return sorted(int(row) for row in np.concatenate([order[captioned], order[~captioned]])[:count])


def _draw_cell(sheet: Image.Image, collection: Collection, row: int, left: int, top: int) -> None:
    draw = ImageDraw.Draw(sheet)
    captions = collection.numbers("matches", "caption")[collection.numbers("matches", "image") == row]
    spans = _grounded_spans(collection, int(captions[0]), row) if len(captions) else []
    draw.rectangle((left, top, left + CELL_WIDTH - 1, top + CELL_HEIGHT - 1), fill=CELL_COLOUR)
    try:
        picture = collection.pictures.open(row)
    except PictureError:
        draw.text(
            (left + CELL_WIDTH // 2, top + CELL_HEIGHT // 2),
            "no picture",
            fill=FAINT_COLOUR,
            font=letters(FONT_SIZE),
            anchor="mm",
        )
    else:
        shown = ImageOps.contain(picture, (CELL_WIDTH, CELL_HEIGHT), Image.Resampling.LANCZOS)
        x, y = left + (CELL_WIDTH - shown.width) // 2, top + (CELL_HEIGHT - shown.height) // 2
        sheet.paste(shown, (x, y))
        for number, (_, _, boxes) in enumerate(spans):
            _draw_boxes(draw, boxes * shown.width / picture.width, (x, y), PHRASE_COLOURS[number % len(PHRASE_COLOURS)])
    _draw_captions(draw, collection, captions, spans, (left, top + CELL_HEIGHT + 10))
    if not len(captions):
        name = str(collection.table("images").column("id")[row].as_py())
        draw.text((left, top + CELL_HEIGHT + 10), name[-36:], fill=FAINT_COLOUR, font=letters(FONT_SIZE))


def _grounded_spans(collection: Collection, caption: int, image: int) -> list[GroundedSpan]:
    """Phrases of a caption that have boxes in this image, in the order of the text."""
    if not collection.has("groundings"):
        return []
    regions = collection.table("regions")
    of_phrase, of_region = collection.numbers("groundings", "phrase"), collection.numbers("groundings", "region")
    start, end = collection.numbers("phrases", "start"), collection.numbers("phrases", "end")
    here = collection.numbers("regions", "image") == image
    found: list[GroundedSpan] = []
    for phrase in np.flatnonzero((collection.numbers("phrases", "caption") == caption) & (start >= 0)):
        rows = of_region[of_phrase == phrase]
        rows = rows[here[rows]]
        if len(rows):
            boxes = np.stack([regions.column(axis).to_numpy()[rows] for axis in ("x0", "y0", "x1", "y1")], axis=1)
            found.append((int(start[phrase]), int(end[phrase]), boxes.astype(np.float64)))
    return sorted(found, key=lambda span: span[:2])


def _draw_boxes(draw: ImageDraw.ImageDraw, boxes: NDArray[np.float64], at: tuple[int, int], colour: str) -> None:
    for x0, y0, x1, y1 in boxes + np.tile(np.array(at), 2):
        draw.rectangle((x0, y0, max(x0 + 1, x1 - 1), max(y0 + 1, y1 - 1)), outline=colour, width=2)


def _draw_captions(
    draw: ImageDraw.ImageDraw, collection: Collection, captions: Ints, spans: list[GroundedSpan], at: tuple[int, int]
) -> None:
    """Draw the first caption with coloured phrases, and as many lines of the second as fit."""
    column = collection.table("captions").column("text")
    # Each white-space character becomes one space, so that character positions stay the same.
    texts = [re.sub(r"\s", " ", str(column[int(c)].as_py())) for c in captions[:2]]
    used = 0
    for number, text in enumerate(texts):
        wrapped = _wrap_text(draw, text)
        room = CAPTION_LINES - used
        for line, (start, words) in enumerate(wrapped[:room]):
            cut = line == room - 1 and len(wrapped) > room
            _draw_line(draw, words + (" …" if cut else ""), start, spans if number == 0 else [], (at, used, number))
            used += 1
        if used >= CAPTION_LINES - 1:
            break


def _draw_line(
    draw: ImageDraw.ImageDraw,
    words: str,
    start: int,
    spans: list[GroundedSpan],
    place: tuple[tuple[int, int], int, int],
) -> None:
    (left, top), line, number = place
    x = float(left)
    for offset, character in enumerate(words):
        colour = TEXT_COLOUR if number == 0 else FAINT_COLOUR
        for phrase, (first, last, _) in enumerate(spans):
            if first <= start + offset < last:
                colour = PHRASE_COLOURS[phrase % len(PHRASE_COLOURS)]
        draw.text((x, top + line * LINE_HEIGHT), character, fill=colour, font=letters(FONT_SIZE))
        x = left + draw.textlength(words[: offset + 1], font=letters(FONT_SIZE))


def _wrap_text(draw: ImageDraw.ImageDraw, text: str) -> list[tuple[int, str]]:
    """Lines that fit the width of a cell, each with the position of its first character in the text."""
    lines: list[tuple[int, str]] = []
    for word in re.finditer(r"\S{1,28}", text):
        start, line = lines[-1] if lines else (0, "")
        longer = text[start : word.end()]
        # Many captions end in " ."; a line with only a full stop is avoided.
        if line and (
            draw.textlength(longer, font=letters(FONT_SIZE)) <= CELL_WIDTH
            or (len(word[0]) == 1 and not word[0].isalnum())
        ):
            lines[-1] = (start, longer)
        else:
            lines.append((word.start(), word[0]))
    return lines
