"""Mined hard negatives of a whole split, stored by ids, so that one matcher can train with the negatives of another."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from calligram.data.pairing import Pairing
from calligram.errors import UserError, command
from calligram.files import move_folder

RankedRows = NDArray[np.int32]
FORMAT, VERSION, MANIFEST = "calligram-negatives", 1, "negatives.json"
_TEXTS, _IMAGES = "texts_of_images.npy", "images_of_texts.npy"
MINE_HINT = 'mine them from this collection with "calligram mine"'
"""hint in the error for lists that were mined from other items"""


@dataclass(frozen=True)
class NegativeLists:
    """The non-matching texts of highest score for each image, and images for each text; hardest first."""

    texts: RankedRows
    """(I, h) rows of texts; -1 where an image has fewer than h negatives"""
    images: RankedRows
    """(T, g) rows of images; -1 where a text has fewer than g negatives"""
    image_ids: tuple[str, ...]
    text_ids: tuple[str, ...]
    about: Mapping[str, object] = field(default_factory=dict)
    """how they were mined: fingerprints of the matcher and the collection, split, arithmetic"""

    def __post_init__(self) -> None:
        if len(self.texts) != len(self.image_ids) or len(self.images) != len(self.text_ids):
            raise ValueError(
                f"{len(self.texts)} lists for {len(self.image_ids)} images and {len(self.images)} lists for "
                f"{len(self.text_ids)} texts; every image and every text needs one list"
            )

    def save(self, folder: Path) -> None:
        """Write a folder atomically: ids as Parquet files, lists as arrays of row numbers."""
        if folder.exists():
            raise UserError(f"{folder} exists; choose another --out")
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        for name, ids in (("images", self.image_ids), ("captions", self.text_ids)):
            pq.write_table(pa.table({"id": pa.array(ids, pa.string())}), partial / f"{name}.parquet")
        np.save(partial / _TEXTS, self.texts)
        np.save(partial / _IMAGES, self.images)
        content = {"format": FORMAT, "version": VERSION, **self.about}
        (partial / MANIFEST).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        move_folder(partial, folder)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> NegativeLists:
        """Open a folder that ``save`` wrote; the lists are memory-mapped."""
        path = Path(folder).expanduser()
        if not (path / MANIFEST).is_file():
            raise UserError(
                f"{path} holds no mined negatives (it has no {MANIFEST}); "
                f"mine them with {command('calligram', 'mine', 'RUN', 'COLLECTION', '--out', path)}"
            )
        try:
            about = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
            image_ids, text_ids = (
                tuple(pq.read_table(path / f"{name}.parquet").column("id").to_pylist())
                for name in ("images", "captions")
            )
            lists = [np.load(path / name, mmap_mode="r", allow_pickle=False) for name in (_TEXTS, _IMAGES)]
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"{path} is damaged ({error}); mine the negatives again") from error
        if about.get("format") != FORMAT or int(about.get("version", 0)) > VERSION:
            raise UserError(f"{path} was written in another format or by a newer version; mine the negatives again")
        return cls(lists[0], lists[1], image_ids, text_ids, about)

    def aligned_to(self, pairing: Pairing, hint: str = MINE_HINT) -> NegativeLists:
        """The lists in the order of the items of ``pairing``.

        Args:
            hint: what to do when the lists belong to other items, for the error.

        Raises:
            UserError: when the ids differ from those of the pairing.
        """
        image_rows = _rows_of_ids(self.image_ids, pairing.visuals.ids, "image", hint)
        text_rows = _rows_of_ids(self.text_ids, pairing.texts.ids, "caption", hint)
        about = dict(self.about)
        return NegativeLists(
            _renumbered(self.texts, image_rows, text_rows),
            _renumbered(self.images, text_rows, image_rows),
            pairing.visuals.ids,
            pairing.texts.ids,
            about,
        )

    def truncated(self, texts: int | None = None, images: int | None = None) -> NegativeLists:
        """Keep the first ``texts`` and ``images`` entries of each list (aoq, Sec. 3.2: the top list size h)."""
        for kind, wanted, lists, candidates in (
            ("texts", texts, self.texts, self.text_ids), ("images", images, self.images, self.image_ids),
        ):  # fmt: skip
            # A small split can have fewer candidates than requested; then all of them were mined.
            if wanted is not None and min(wanted, len(candidates)) > lists.shape[1]:
                raise UserError(
                    f"{wanted} hard {kind} are requested, but only {lists.shape[1]} were mined; "
                    f"mine more with --{kind} {wanted}, or request fewer"
                )
        return NegativeLists(self.texts[:, :texts], self.images[:, :images], self.image_ids, self.text_ids, self.about)


def _rows_of_ids(mined: tuple[str, ...], wanted: tuple[str, ...], kind: str, hint: str) -> NDArray[np.int64]:
    """The row of each wanted id among the mined ids; refuses lists of other items."""
    if mined == wanted:
        return np.arange(len(wanted))
    row = {name: number for number, name in enumerate(mined)}
    missing = [name for name in wanted if name not in row]
    unexpected = sorted(set(mined) - set(wanted))
    if missing or unexpected:
        parts = []
        if missing:
            parts.append(f"{len(missing)} of {len(wanted)} {kind}s have no list (such as {missing[0]!r})")
        if unexpected:
            parts.append(f"{len(unexpected)} of {len(mined)} listed {kind}s are unknown (such as {unexpected[0]!r})")
        raise UserError(
            f"these negatives were mined from other items than this split of the collection: {'; '.join(parts)}; {hint}"
        )
    return np.array([row[name] for name in wanted], dtype=np.int64)


def _renumbered(lists: RankedRows, anchors: NDArray[np.int64], candidates: NDArray[np.int64]) -> RankedRows:
    """Reorder the lists by anchor, and renumber the candidates in them."""
    new_row = np.empty(len(candidates) + 1, dtype=np.int32)
    new_row[candidates] = np.arange(len(candidates), dtype=np.int32)
    new_row[-1] = -1  # an entry of -1 (no negative) stays -1
    return new_row[np.asarray(lists)[anchors]]
