"""A collection on disk: Parquet tables, pictures, feature arrays and a manifest. It gives pairings of its splits."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from calligram.checksums import check_files
from calligram.data.draft import MetadataValue
from calligram.data.matches import Matches
from calligram.data.pairing import Pairing, StoredFeatures, Texts, Visuals
from calligram.data.pictures import PictureError, StoredPictures
from calligram.errors import UserError, unknown, wrong_folder
from calligram.files import parts_hash, remove_leftovers
from calligram.notebook import html_picture, html_table
from calligram.records import anything, check_object, integer, list_of, map_of, read_object, record, text

Ints = NDArray[np.int64]

FORMAT = "calligram-collection"
VERSION = 1
MANIFEST = "collection.json"
SPLITS = ("train", "dev", "test")
IMAGE_COLUMNS = ("id", "path", "shard", "offset", "bytes", "width", "height", "split", "identity")
ADDED_REVISION, ADDED_TIME = "added.revision", "added.when"
"""columns of ``captions``: the revision that added a caption, and its time (UTC); null for captions of the source"""
CAPTION_COLUMNS = ("id", "text", ADDED_REVISION, ADDED_TIME)
SPLIT_REVISION = "split.revision"
"""column of ``images``: the revision that assigned the split; null where the source gave the split"""
SHOWN_SAMPLES = 8
"""pictures of a collection that a notebook shows"""
IMPORT_AGAIN = "import the collection again"
FILE_NAME = text(r"(?!/)(?!.*(^|/)\.\.(/|$))[^\x00]+", "the path of a file in the collection")
FILE_RECORD = text("[0-9a-f]{8} [0-9]+", "a checksum and a size")
MANIFEST_SCHEMA = record(
    {"format": text(), "version": integer(0), "name": text(), "counts": map_of(integer(0))},
    {
        **{"about": map_of(anything), "shards": list_of(text()), "features": map_of(list_of(text()))},
        **{"revision": integer(0), "tables": map_of(FILE_NAME), "files": map_of(FILE_RECORD)},
        "proposals": map_of(record({"settings": map_of(anything)}, {"images": integer(0)}, closed=False)),
    },
)
"""of ``collection.json``"""


class Collection:
    """Tables of images, captions, regions and phrases, and the matches between them.

    Tables refer to each other by row number: ``matches`` holds (image, caption), ``regions`` an image, ``phrases`` a
    caption, ``groundings`` (phrase, region). ``docs/design.md`` lists every column.
    """

    def __init__(self, folder: Path, manifest: Mapping[str, object]) -> None:
        """Store the folder and its manifest. Use ``Collection.open`` instead."""
        self.folder = folder
        self.manifest = manifest
        self._tables: dict[str, pa.Table] = {}

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Collection:
        """Open the collection in ``folder``.

        Raises:
            UserError: when the folder holds no collection, a damaged one, or one of a newer version.
        """
        path = Path(folder)
        if not (path / MANIFEST).is_file():
            remove_leftovers(path)  # a process that was killed may have left the collection without its name
        if not (path / MANIFEST).is_file():
            raise wrong_folder(path, "collection")
        manifest = read_object(path / MANIFEST, IMPORT_AGAIN)
        if manifest.get("format") != FORMAT:
            raise UserError(
                f"{path / MANIFEST} has format {manifest.get('format')!r}, not {FORMAT!r}; "
                "give the folder of a collection"
            )
        check_object(path / MANIFEST, manifest, record({"version": integer(0)}, closed=False), IMPORT_AGAIN)
        if manifest["version"] > VERSION:
            raise UserError(
                f"{path} has collection version {manifest['version']}, this calligram reads up to {VERSION}; "
                "upgrade calligram"
            )
        check_object(path / MANIFEST, manifest, MANIFEST_SCHEMA, IMPORT_AGAIN)
        return cls(path, manifest)

    def check(self, names: Iterable[str]) -> None:
        """Compare files of the collection with the checksums of its manifest, if it has them.

        Raises:
            DamagedFileError: for the first file that differs.
        """
        records = self.manifest.get("files", {})
        assert isinstance(records, dict)
        listed = {name: records[name] for name in names if name in records}
        check_files(self.folder, listed, IMPORT_AGAIN, missing=True)  # whoever reads a missing file says more

    @property
    def name(self) -> str:
        """Short name of the collection, used in results."""
        return str(self.manifest["name"])

    def _repr_html_(self) -> str:
        """Counts and some pictures, for a notebook."""
        counts: Any = self.manifest.get("counts", {})
        cells = []
        for row, id in enumerate(self.table("images").column("id").to_pylist()[:SHOWN_SAMPLES]):
            try:
                cells.append(html_picture(self.pictures.open(row), str(id)))
            except PictureError:  # features without pictures
                cells.append(html_picture(None, str(id)))
        rows = [(name, f"{count:,}") for name, count in counts.items() if count]
        return f"<p><b>{escape(self.name)}</b></p>{html_table(['table', 'rows'], rows)}{''.join(cells)}"

    @property
    def generated(self) -> bool:
        """Whether the pictures were generated (scenes) and may be shared without restriction."""
        about = self.manifest.get("about", {})
        return isinstance(about, dict) and "generator" in about

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the images, the captions and their matches."""
        return parts_hash((self._file(name).read_bytes() for name in ("images", "captions", "matches")), 8)

    def table(self, name: str) -> pa.Table:
        """A table by name: images, captions, matches, regions, phrases, groundings, also_true or problems."""
        if name not in self._tables:
            file = self._file(name)
            if not file.is_file():
                counts = self.manifest.get("counts", {})
                assert isinstance(counts, dict)
                if name in counts:
                    raise UserError(f"{file} is missing, yet {MANIFEST} lists it; import the collection again")
                raise UserError(f"collection {self.folder} has no {name}; import a source that has them")
            self.check([file.name])
            try:
                self._tables[name] = pq.read_table(file, memory_map=True)
            except (pa.ArrowException, OSError) as error:
                raise UserError(f"{file} is damaged ({error}); import the collection again") from error
        return self._tables[name]

    def has(self, name: str) -> bool:
        """Whether a table exists and has rows."""
        return (name in self._tables or self._file(name).is_file()) and len(self.table(name)) > 0

    def _file(self, name: str) -> Path:
        # A table that was replaced after the import has another file name, which the manifest lists.
        replaced = self.manifest.get("tables", {})
        assert isinstance(replaced, dict)
        return self.folder / str(replaced.get(name, f"{name}.parquet"))

    def column(self, table: str, name: str) -> list[MetadataValue]:
        """One column as a list of Python values."""
        values: list[MetadataValue] = self.table(table).column(name).to_pylist()
        return values

    def numbers(self, table: str, name: str, missing: int = -1) -> Ints:
        """One column of integers as an array; nulls become ``missing``."""
        filled = pc.fill_null(self.table(table).column(name), missing)
        return np.asarray(filled.to_numpy(), dtype=np.int64)

    @property
    def metadata_columns(self) -> tuple[str, ...]:
        """Columns of ``images`` that hold metadata of the source."""
        names = self.table("images").column_names
        return tuple(n for n in names if n not in (*IMAGE_COLUMNS, SPLIT_REVISION) and not n.startswith("features."))

    @property
    def caption_metadata_columns(self) -> tuple[str, ...]:
        """Columns of ``captions`` that hold metadata of the source."""
        return tuple(n for n in self.table("captions").column_names if n not in CAPTION_COLUMNS)

    @cached_property
    def pictures(self) -> StoredPictures:
        """The pictures, opened by image row."""
        shards = self.manifest.get("shards", [])
        assert isinstance(shards, list)
        if self.numbers("images", "shard").max(initial=-1) >= len(shards):
            named = f"names {len(shards)} shards, and an image is in another"
            raise UserError(f"{self.folder / MANIFEST} is damaged (it {named}); {IMPORT_AGAIN}")
        return StoredPictures(self)

    @cached_property
    def features(self) -> dict[str, StoredFeatures]:
        """Feature arrays by name."""
        listed = self.manifest.get("features", {})
        assert isinstance(listed, dict)
        self.check(file for files in listed.values() for file in files)
        return {
            name: StoredFeatures([self.folder / f for f in files], self.numbers("images", f"features.{name}"))
            for name, files in listed.items()
        }

    def splits(self) -> dict[str, int]:
        """Number of images in each split; the empty name counts images without a split."""
        counts: dict[str, int] = {}
        for split in self.column("images", "split"):
            key = str(split) if split else ""
            counts[key] = counts.get(key, 0) + 1
        return counts

    def images_in(self, split: str) -> Ints:
        """Rows of the images of a split; ``all`` gives every image."""
        if split == "all":
            return np.arange(len(self.table("images")))
        rows = np.flatnonzero(np.array([s == split for s in self.column("images", "split")], dtype=bool))
        if not len(rows):
            refused = unknown("split", split, {*(s for s in self.splits() if s), "all"})
            if split not in SPLITS:
                raise refused
            raise UserError(
                f"{refused}. Give a captions file a column 'split' (train, dev or test) and import again, or use all "
                "images with --split all where a command has this option"
            )
        return rows

    def visuals(self, rows: Ints) -> Visuals:
        """These images as visual items."""
        ids = self.table("images").column("id").take(pa.array(rows)).to_pylist()
        return Visuals(tuple(ids), self.pictures, np.asarray(rows, dtype=np.int64), None, self.features)

    def texts(self, rows: Ints) -> Texts:
        """These captions as texts."""
        part = self.table("captions").take(pa.array(rows))
        return Texts(tuple(part.column("id").to_pylist()), tuple(part.column("text").to_pylist()))

    def _matches(self, table: str) -> Matches:
        shape = (len(self.table("images")), len(self.table("captions")))
        return Matches(self.numbers(table, "image"), self.numbers(table, "caption"), shape)

    def sentences(self, split: str) -> Pairing:
        """Images of a split and their captions. Images without captions are included."""
        images = self.images_in(split)
        matches = self._matches("matches")
        of_image, of_caption = matches.pairs()
        captions = np.unique(of_caption[np.isin(of_image, images)])
        also = self._matches("also_true").select(images, captions) if self.has("also_true") else None
        return Pairing(self.visuals(images), self.texts(captions), matches.select(images, captions), also)

    def unannotated(self, split: str) -> Visuals:
        """Images of a split without captions. For train this includes images without a split, which no test uses."""
        images = self.images_in(split)
        if split == "train":
            free = np.flatnonzero(np.array([not s for s in self.column("images", "split")], dtype=bool))
            images = np.union1d(images, free)
        return self.visuals(np.setdiff1d(images, self.numbers("matches", "image")))

    def sparse(self, images: float = 1.0, captions: int | None = None, seed: int = 0) -> Collection:
        """A view of the collection with fewer captions in train.

        Images that lose their captions stay, and the other splits do not change. Levels of one seed are nested: the
        images kept at 0.1 are among those kept at 0.2, and the captions kept at 1 among those kept at 2
        (a3vse, Sec. 4.1).

        Args:
            images: share of the captioned images that keep captions, 0 to 1.
            captions: number of captions that each of these images keeps; all when None.
        """
        from calligram.data.sparse import Sparsity, sparse_view

        return sparse_view(self, Sparsity(images, captions, seed))

    def identities(self, split: str) -> Pairing:
        """Images of a split and their captions, matched by identity (person search)."""
        by_image = self.sentences(split)
        identity = self.numbers("images", "identity")[by_image.visuals.rows]
        if (identity < 0).all():
            raise UserError(
                f"collection {self.folder} has no identities in split {split}; "
                "give a captions file a column 'identity' and import again"
            )
        visual, text = by_image.matches.pairs()
        of_text = np.full(len(by_image.texts), -1, dtype=np.int64)
        of_text[text] = identity[visual]
        same = Matches.from_groups(identity, of_text)
        # A text is true of every image of its person, and of other people with the same appearance.
        also = None if by_image.also_true is None else same.plus(by_image.also_true)
        return Pairing(by_image.visuals, by_image.texts, same, also)

    def has_identities(self, split: str) -> bool:
        """Whether any image of a split has an identity, so that texts can be matched by identity."""
        return bool((self.numbers("images", "identity")[self.images_in(split)] >= 0).any())

    def phrases(self, split: str, source: str = "truth") -> Pairing:
        """Regions of a split and the phrases that refer to them."""
        images = self.images_in(split)
        regions = self.table("regions")
        wanted = np.isin(self.numbers("regions", "image"), images)
        wanted &= np.array([s == source for s in self.column("regions", "source")], dtype=bool)
        rows = np.flatnonzero(wanted)
        boxes = np.stack([regions.column(c).to_numpy()[rows] for c in ("x0", "y0", "x1", "y1")], axis=1)
        grounded = Matches(
            self.numbers("groundings", "region"),
            self.numbers("groundings", "phrase"),
            (len(regions), len(self.table("phrases"))),
        )
        of_region, of_phrase = grounded.pairs()
        texts = np.unique(of_phrase[np.isin(of_region, rows)])
        part = self.table("phrases").take(pa.array(texts))
        visuals = Visuals(
            tuple(regions.column("id").take(pa.array(rows)).to_pylist()),
            self.pictures,
            self.numbers("regions", "image")[rows],
            boxes.astype(np.float32),
        )
        named = Texts(tuple(part.column("id").to_pylist()), tuple(part.column("text").to_pylist()))
        return Pairing(visuals, named, grounded.select(rows, texts))
