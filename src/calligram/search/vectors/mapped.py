"""Vectors of a large index in files that are mapped into memory, with inverted lists for approximate search.

A table is slow to read: a million rows of 512 dimensions took nine seconds. So the vectors of a large table are copied
into a folder of plain files, which are opened in milliseconds and shared by all processes. The files never change.
Rows are recognized by their address in the table, so rows that were added or deleted since are known at once.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import re
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from calligram.checksums import CHECKED_FILE, check_files, folder_records
from calligram.files import check_space, move_folder, replace_file, sync_folder, sync_tree
from calligram.progress import Track, silent
from calligram.search.vectors.exact import Ints, RowHits, least_score, scored_rows
from calligram.search.vectors.inverted_lists import MIN_RECALL, InvertedLists, build_lists, fewest_probes

log = logging.getLogger(__name__)

Flags = NDArray[np.bool_]
Floats = NDArray[np.float32]
Addresses = NDArray[np.uint64]

MAPPED_ROWS = 200_000
"""rows from which on vectors are mapped and searched approximately; with fewer, the exact search is as fast"""
MAX_CHANGED_SHARE = 0.1
"""files are written again when more than this share of the rows was added or deleted since"""
SCAN_ROWS = 8192
"""rows that are compared at a time when all are compared"""
MAX_SCANNED_NUMBERS = 1_000_000
"""up to so many numbers, the rows that satisfy a condition are compared exactly; 2,000 rows of 512 dimensions"""
MIN_DENSE_SHARE = 1 / 16
"""from this share of the rows on, they are read through the map"""
CANDIDATE_FACTOR, MIN_CANDIDATES = 2, 40
"""candidates of the approximate search for each wanted row, and at least, which are scored again"""
MAX_APPROXIMATE_HITS = 2000
"""for more hits, all rows are compared"""
PROBED_HITS = 100
"""for more hits, more lists are compared"""
RECALL_QUERIES, RECALL_HITS = 512, 10
"""the recall is measured with so many queries of each kind, for so many hits"""
MEMORY_BYTES = 1 << 30
"""of mapped files that stay in the memory of a process; the system may keep more of them in its cache"""
FAULT_BYTES = 1 << 20
"""a system may map so much of a file around a byte that is read"""

FILE_BYTES_PER_NUMBER, FILE_BYTES_PER_ROW = 3, 60
"""of all files: half precision and codes; id, address and place in a list"""
NO_ADDRESS = np.uint64(2**64 - 1)
"""of a row that is no longer in the table"""
VECTORS_FILE, IDS_FILE, LISTS_FILE = "vectors.f16", "ids.arrow", "lists.faiss"


@dataclass(frozen=True)
class MappedRecord:
    """What the manifest of a library stores about mapped files."""

    folder: str
    """its name, a number"""
    addresses: str
    """name of the file with the address of each row in the table"""
    rows: int
    limit: int
    """``MAPPED_ROWS`` when it was written"""
    sizes: Mapping[str, int]
    """bytes of each file"""
    checksums: Mapping[str, str] = field(default_factory=dict)
    """of each file and of the addresses; see ``calligram.checksums``"""
    probes: int = 0
    """lists that a query is compared with; 0 without lists"""
    recall: float | None = None
    """share of the ten nearest rows that were found, with vectors of the library as queries; None without lists"""

    @property
    def version(self) -> int:
        """The version of the table with these addresses."""
        return int(re.sub(r"\D", "", self.addresses.partition(".")[0]))

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> MappedRecord:
        """Read a record.

        Raises:
            ValueError: for names outside of the folder, because a library may come from somebody else.
        """
        found = cls(**content)
        if not re.fullmatch(r"\d+", found.folder) or not re.fullmatch(r"rows-\d+\.u64", found.addresses):
            raise ValueError(f"{found.folder}/{found.addresses} is not the name of mapped vectors")
        return found

    def to_json(self) -> dict[str, Any]:
        """The record for a manifest."""
        return asdict(self)


class RowBatch(NamedTuple):
    """Rows of a table: ids, float16 vectors, and addresses."""

    ids: pa.StringArray
    vectors: NDArray[np.float16]
    addresses: Addresses


class JoinedIds(NamedTuple):
    """Ids of rows in mapped files, then of rows in memory; a chunked array of Arrow takes a hundred times longer."""

    mapped: pa.StringArray
    added: pa.StringArray

    def take(self, rows: NDArray[np.int64]) -> list[str]:
        """The ids of rows."""
        count = len(self.mapped)
        first = iter(self.mapped.take(pa.array(rows[rows < count])).to_pylist())
        second = iter(self.added.take(pa.array(rows[rows >= count] - count)).to_pylist())
        return [next(first) if row < count else next(second) for row in rows.tolist()]


class MappedVectors:
    """The mapped files. They never change, and any number of threads may search."""

    def __init__(self, base: Path, record: MappedRecord, dim: int, memory: int = MEMORY_BYTES) -> None:
        """Map the files.

        Args:
            base: folder of the numbered folders.
            record: of the files.
            dim: dimensions of the vectors.
            memory: bytes of the files that stay in the memory of this process.

        Raises:
            ValueError, OSError: when a file is missing or is not the one of the record.
        """
        self.record, self._folder, self._memory = record, base / record.folder, memory
        sizes = {name: (self._folder / name).stat().st_size for name in record.sizes}
        if sizes != dict(record.sizes) or record.sizes[VECTORS_FILE] != 2 * record.rows * dim:
            raise ValueError(f"{self._folder} has files of another size")
        check_files(self._folder, record.checksums, "the next calligram index writes it again")
        # Mode "c", because torch warns of arrays that cannot be written to.
        self.vectors: NDArray[np.float16] = np.memmap(self._folder / VECTORS_FILE, np.float16, "c").reshape(-1, dim)
        self.addresses: Addresses = np.fromfile(self._folder / record.addresses, np.uint64)
        self.ids: pa.StringArray = _read_ids(self._folder / IDS_FILE)
        if not len(self.addresses) == len(self.ids) == len(self.vectors):
            raise ValueError(f"{self._folder} has files of different lengths")
        # Single rows are read and not mapped: the system would map a megabyte around each.
        self._file = (self._folder / VECTORS_FILE).open("rb", buffering=0)
        self._lists = self._open_lists()
        self._touched: Counter[str] = Counter()
        self._lock = threading.Lock()
        # A matrix product uses all cores, and many at the same time disturb each other.
        self._scan_lock = threading.Lock()

    def _open_lists(self) -> InvertedLists | None:
        if LISTS_FILE not in self.record.sizes:
            return None
        lists = InvertedLists.open(self._folder / LISTS_FILE, *self.vectors.shape)
        if lists is None:
            log.warning("faiss is not installed, so all vectors are compared; pip install faiss-cpu makes it faster")
        return lists

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def recall(self) -> float | None:
        """The recall of approximate search; None where every search is exact."""
        return None if self._lists is None else self.record.recall

    def holds_all_of(self, version: int, count: int) -> bool:
        """Whether the rows are exactly those of a version of the table, which has ``count`` rows."""
        return self.record.version == version and len(self) == count and not (self.addresses == NO_ADDRESS).any()

    def rows_at(self, rows: Ints) -> NDArray[np.float16]:
        """The vectors of rows."""
        if len(rows) >= MIN_DENSE_SHARE * len(self) or not hasattr(os, "preadv"):
            return np.asarray(self.vectors[rows])
        found = np.empty((len(rows), self.vectors.shape[1]), np.float16)
        view, size = found.data.cast("B"), found.itemsize * found.shape[1]
        for place, row in enumerate(rows.tolist()):
            os.preadv(self._file.fileno(), [view[place * size : (place + 1) * size]], row * size)
        return found

    def scan(self, queries: Floats, k: int, rows: Ints | None, ties: Callable[[Ints], Ints] | None) -> list[RowHits]:
        """The best k of the given rows, or of all, for each query: all are compared, a part of them at a time."""
        count = len(self) if rows is None else len(rows)
        if not count:
            return [RowHits(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries]
        k, dim = min(k, count), self.vectors.shape[1]
        kept = [(np.empty(0, np.int64), np.empty(0, np.float32), np.float32(-np.inf)) for _ in queries]
        with self._scan_lock:
            for start in range(0, count, SCAN_ROWS):
                stop = min(start + SCAN_ROWS, count)
                part = self.vectors[start:stop] if rows is None else self.rows_at(rows[start:stop])
                products = (torch.from_numpy(queries) @ torch.from_numpy(np.asarray(part)).float().T).numpy()
                for number, rough in enumerate(products):
                    places, scores, least = kept[number]
                    new = np.flatnonzero(rough >= least)
                    places = np.concatenate((places, new + start))
                    scores = np.concatenate((scores, rough[new]))
                    if len(new) and len(scores) >= k:
                        least = least_score(scores, k, dim)
                        places, scores = places[scores >= least], scores[scores >= least]
                    kept[number] = places, scores, least
                self._touch(VECTORS_FILE, part.nbytes)
        chosen = [places if rows is None else rows[places] for places, _, _ in kept]
        return [scored_rows(self.rows_at, q, found, k, ties) for q, found in zip(queries, chosen, strict=True)]

    def nearest(
        self,
        queries: Floats,
        k: int,
        allowed: Flags | None = None,
        ties: Callable[[Ints], Ints] | None = None,
        probes: int | None = None,
    ) -> list[RowHits]:
        """About the best k of the allowed rows for each query: candidates of the lists, scored exactly.

        With a condition, so many more lists are compared that the number of allowed rows among them stays the same.
        Where that is all lists, or fewer than k rows are found, the allowed rows are compared exactly.
        """
        count = len(self) if allowed is None else int(np.count_nonzero(allowed))
        k, lists = min(k, count), self._lists
        few = allowed is not None and count * self.vectors.shape[1] <= MAX_SCANNED_NUMBERS
        if lists is None or few or k > MAX_APPROXIMATE_HITS:
            return self.scan(queries, k, None if allowed is None else np.flatnonzero(allowed), ties)
        wanted = (self.record.probes if probes is None else probes) * max(1.0, k / PROBED_HITS) * len(self) / count
        probed = min(int(np.ceil(wanted)), lists.lists)
        found = lists.search(queries, max(CANDIDATE_FACTOR * k, MIN_CANDIDATES), probed, allowed)
        self._touch(LISTS_FILE, len(queries) * probed * (lists.mean_list_bytes + FAULT_BYTES))
        hits = [scored_rows(self.rows_at, q, rows, k, ties) for q, rows in zip(queries, found, strict=True)]
        if short := [number for number, hit in enumerate(hits) if len(hit.rows) < k]:
            rest = self.scan(queries[short], k, None if allowed is None else np.flatnonzero(allowed), ties)
            for number, hit in zip(short, rest, strict=True):
                hits[number] = hit
        return hits

    def _touch(self, name: str, count: int) -> None:
        """Count the bytes that were read of a file, and give their memory back when they are too many."""
        with self._lock:
            self._touched[name] = min(self._touched[name] + count, self.record.sizes[name])
            if self._touched.total() <= self._memory:
                return
            self._touched.clear()
            mapping = getattr(self.vectors.base, "_mmap", None)
            if isinstance(mapping, mmap.mmap) and hasattr(mapping, "madvise"):
                mapping.madvise(mmap.MADV_DONTNEED)  # private pages that nobody wrote to: they are read again
            if self._lists is not None:
                with contextlib.suppress(OSError, ValueError):  # a writer has deleted the file, which is still mapped
                    self._lists = InvertedLists.open(self._folder / LISTS_FILE, *self.vectors.shape)

    def measured(self, queries: Floats | None) -> MappedRecord:
        """The record with the number of lists to compare, chosen so that the recall is high enough.

        Queries are a sample of the rows, which must find the rows next to them, and the given ones; the smaller recall
        of the two counts. A standard error less than the measured recall must still be high enough.

        Args:
            queries: (Q, D) of another kind, such as captions; None for none.
        """
        lists = self._lists
        if lists is None:
            return self.record
        own = np.sort(np.random.default_rng(1).choice(len(self), min(RECALL_QUERIES, len(self)), replace=False))
        samples = [(self.vectors[own].astype(np.float32), own)]
        if queries is not None and len(queries):
            samples.append((queries[:RECALL_QUERIES], np.full(min(len(queries), RECALL_QUERIES), -1)))
        hits = RECALL_HITS + 1
        wanted = [[h.rows for h in self.scan(sample, hits, None, None)] for sample, _ in samples]

        def recall_of(probes: int, errors: float) -> float:
            measured = []
            for (sample, rows), truth in zip(samples, wanted, strict=True):
                found = [h.rows for h in self.nearest(sample, hits, probes=probes)]
                shares = _recalls(found, truth, rows)
                measured.append(float(shares.mean() - errors * shares.std() / len(shares) ** 0.5))
            return min(measured)

        probes = fewest_probes(lambda probes: recall_of(probes, 1.0), lists.lists, MIN_RECALL)
        return replace(self.record, probes=probes, recall=round(recall_of(probes, 0.0), 4))

    def with_addresses(self, addresses: Addresses, version: int) -> MappedVectors:
        """The same files with the addresses that their rows have in another version of the table, written to disk."""
        name = f"rows-{version}.u64"
        _write_addresses(self._folder / name, addresses)
        kept = {file: checksum for file, checksum in self.record.checksums.items() if file in self.record.sizes}
        record = replace(self.record, addresses=name, checksums=kept | folder_records(self._folder, [name]))
        return MappedVectors(self._folder.parent, record, self.vectors.shape[1], self._memory)


def _recalls(found: list[Ints], truth: list[Ints], own: Ints) -> NDArray[np.float64]:
    """The share of the true rows that each query found; ``own`` is the row of each query, which does not count."""
    shares = []
    for rows, right, row in zip(found, truth, own, strict=True):
        wanted = right[right != row][:RECALL_HITS]
        shares.append(np.isin(wanted, rows[rows != row][:RECALL_HITS]).mean() if len(wanted) else 1.0)
    return np.array(shares, np.float64)


def write_mapped(
    base: Path,
    batches: Iterable[RowBatch],
    shape: tuple[int, int],
    version: int,
    *,
    queries: Floats | None = None,
    trained: MappedVectors | None = None,
    memory: int = MEMORY_BYTES,
    track: Track = silent,
) -> MappedVectors:
    """Copy the rows of a table into a new folder and build their lists; the folder is complete or absent.

    Args:
        base: folder of the numbered folders.
        batches: all rows.
        shape: number of rows, and dimensions of the vectors.
        version: of the table.
        queries: vectors of another kind that are used as queries, for measuring the recall.
        trained: earlier files whose centres are used again.
        memory: bytes of the files that stay in the memory of this process.
        track: shows progress.
    """
    (count, dim), row_bytes = shape, FILE_BYTES_PER_ROW + FILE_BYTES_PER_NUMBER * shape[1]
    base.mkdir(parents=True, exist_ok=True)
    check_space(base, count * row_bytes)  # faiss does not say that a disk is full
    number = 1 + max((int(f.name) for f in base.iterdir() if f.name.isdigit()), default=0)
    partial, addresses = base / f".{number}.partial", f"rows-{version}.u64"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    ids, rows = [], []
    with (partial / VECTORS_FILE).open("wb") as stream:
        for batch in batches:
            stream.write(np.ascontiguousarray(batch.vectors).data)
            ids.append(batch.ids)
            rows.append(batch.addresses)
    _write_ids(partial / IDS_FILE, pa.concat_arrays(ids))
    _write_addresses(partial / addresses, np.concatenate(rows))
    vectors = np.memmap(partial / VECTORS_FILE, np.float16, "r").reshape(-1, dim)
    old = None if trained is None or LISTS_FILE not in trained.record.sizes else trained._folder / LISTS_FILE
    build_lists(vectors, partial / LISTS_FILE, old, track)
    files = [name for name in (VECTORS_FILE, IDS_FILE, LISTS_FILE) if (partial / name).is_file()]
    sizes = {name: (partial / name).stat().st_size for name in files}
    sync_tree(partial)
    move_folder(partial, base / str(number))
    sync_folder(base)
    checksums = folder_records(base / str(number), [*files, addresses])
    record = MappedRecord(str(number), addresses, len(vectors), MAPPED_ROWS, sizes, checksums)
    written = MappedVectors(base, record, dim, memory)
    written.record = written.measured(queries)
    return written


def unnamed(base: Path, record: MappedRecord | None) -> list[Path]:
    """Folders and files that the record does not name: replaced ones, and those of writers that were killed.

    A process that has them mapped goes on reading them when they are deleted.
    """
    found = [] if not base.is_dir() else [path for path in base.iterdir() if not record or path.name != record.folder]
    if record is not None:
        named = {record.addresses, *record.sizes, CHECKED_FILE}
        found += [file for file in (base / record.folder).iterdir() if file.name not in named]
    return found


def _write_addresses(file: Path, addresses: Addresses) -> None:
    with replace_file(file) as partial:
        addresses.astype(np.uint64).tofile(partial)


def _write_ids(file: Path, ids: pa.StringArray) -> None:
    batch = pa.record_batch({"id": ids})
    with pa.OSFile(str(file), "wb") as stream, pa.ipc.new_file(stream, batch.schema) as writer:
        writer.write_batch(batch)


def _read_ids(file: Path) -> pa.StringArray:
    try:
        return pa.ipc.open_file(pa.memory_map(str(file))).get_batch(0)["id"]
    except pa.ArrowException as error:
        raise ValueError(f"{file} is damaged") from error
