"""Hard negatives of a whole split, by ids: any matcher may learn from what another one mined."""

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

RankedRows = NDArray[np.int32]

FORMAT, VERSION, MANIFEST = "calligram-negatives", 1, "negatives.json"
_TEXTS, _IMAGES = "texts_of_images.npy", "images_of_texts.npy"
MINE_HINT = 'mine them from this collection with "calligram mine"'
"""what to do about lists of other items"""


@dataclass(frozen=True)
class NegativeLists:
    """For each image the texts, and for each text the images, that score best without matching; the hardest first."""

    texts: RankedRows
    """(I, h) rows of texts; -1 where an image has fewer"""
    images: RankedRows
    """(T, g) rows of images"""
    image_ids: tuple[str, ...]
    text_ids: tuple[str, ...]
    about: Mapping[str, object] = field(default_factory=dict)
    """what they were mined with: fingerprints of matcher and collection, split, arithmetic"""

    def __post_init__(self) -> None:
        if len(self.texts) != len(self.image_ids) or len(self.images) != len(self.text_ids):
            raise ValueError("a list is needed for every image and every text")

    def save(self, folder: Path) -> None:
        """Write a folder, there whole or not at all: ids as Parquet, lists as arrays of row numbers into them."""
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
        partial.rename(folder)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> NegativeLists:
        """Read what ``save`` wrote; the lists stay on disk."""
        path = Path(folder).expanduser()
        if not (path / MANIFEST).is_file():
            raise UserError(
                f"{path} holds no negatives (it has no {MANIFEST}); "
                f"make them with {command('calligram', 'mine', 'RUN', 'COLLECTION', '--out', path)}"
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

    def aligned_to(self, pairing: Pairing, mend: str = MINE_HINT) -> NegativeLists:
        """The same lists in the order of a pairing's items.

        Args:
            mend: what to do about lists of other items.

        Raises:
            UserError: when the ids are not those of the pairing.
        """
        image_place = _rows_of_ids(self.image_ids, pairing.visuals.ids, "image", mend)
        text_place = _rows_of_ids(self.text_ids, pairing.texts.ids, "caption", mend)
        about = dict(self.about)
        return NegativeLists(
            _renumbered(self.texts, image_place, text_place),
            _renumbered(self.images, text_place, image_place),
            pairing.visuals.ids,
            pairing.texts.ids,
            about,
        )

    def truncated(self, texts: int | None = None, images: int | None = None) -> NegativeLists:
        """Only the first so many of each list (aoq, Sec. 3.2: the top list size h)."""
        for kind, wanted, there, candidates in (
            ("texts", texts, self.texts, self.text_ids), ("images", images, self.images, self.image_ids),
        ):  # fmt: skip
            # A small split has fewer candidates than are asked for; then all of them were mined.
            if wanted is not None and min(wanted, len(candidates)) > there.shape[1]:
                raise UserError(
                    f"{wanted} hard {kind} are asked for and {there.shape[1]} were mined; "
                    f"mine more with --{kind} {wanted}, or ask for fewer"
                )
        return NegativeLists(self.texts[:, :texts], self.images[:, :images], self.image_ids, self.text_ids, self.about)


def _rows_of_ids(mined: tuple[str, ...], wanted: tuple[str, ...], kind: str, mend: str) -> NDArray[np.int64]:
    """The row that each wanted id has among the mined ones; refuses lists of other items."""
    if mined == wanted:
        return np.arange(len(wanted))
    row = {name: number for number, name in enumerate(mined)}
    missing = [name for name in wanted if name not in row]
    strange = sorted(set(mined) - set(wanted))
    if missing or strange:
        parts = []
        if missing:
            parts.append(f"{len(missing)} of {len(wanted)} {kind}s have no list (such as {missing[0]!r})")
        if strange:
            parts.append(f"{len(strange)} of {len(mined)} listed {kind}s are not there (such as {strange[0]!r})")
        raise UserError(
            f"these negatives were mined from other items than this collection's split: {'; '.join(parts)}; {mend}"
        )
    return np.array([row[name] for name in wanted], dtype=np.int64)


def _renumbered(lists: RankedRows, anchors: NDArray[np.int64], candidates: NDArray[np.int64]) -> RankedRows:
    """Lists in another order of their anchors, naming candidates by another order."""
    back = np.empty(len(candidates) + 1, dtype=np.int32)
    back[candidates] = np.arange(len(candidates), dtype=np.int32)
    back[-1] = -1  # what -1 is looked up as
    return back[np.asarray(lists)[anchors]]
