"""The interface of a vector index; everything outside this package uses only this interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calligram.progress import Track, silent
from calligram.search.filters.conditions import Condition


class VectorHit(NamedTuple):
    """An item found by vector search, and its cosine with the query."""

    id: str
    score: float


class Index(Protocol):
    """Vectors with ids and filter columns, searched by cosine.

    Vectors are normalised to unit length when they are added. Columns hold numbers, text or flags (see
    ``columns.kinds_of``). The rows of a table of columns are in the order of the ids given with it, and a later call
    may add columns. All methods may be called from many threads, with one writer at a time.
    """

    @property
    def dim(self) -> int:
        """Number of dimensions of the vectors."""
        ...

    @property
    def version(self) -> int | None:
        """The version that this index reads, with which it can be opened again; None for engines without versions."""
        ...

    @property
    def mapped(self) -> Mapping[str, Any] | None:
        """Files that speed the index up, for a manifest, which opens the index again with them; None for none."""
        ...

    @property
    def unfinished(self) -> bool:
        """Whether ``optimize`` would make searches much faster."""
        ...

    @property
    def recall(self) -> float | None:
        """The share of the ten nearest items that a search finds, as measured; None where searches are exact."""
        ...

    def add(self, ids: Sequence[str], vectors: NDArray[np.float32], columns: pa.Table) -> None:
        """Add items, or replace items with the same id; if anything fails, nothing changes.

        Raises:
            UserError: for vectors of another dimension, zero or not finite, and for ids given twice.
        """
        ...

    def update(self, ids: Sequence[str], columns: pa.Table) -> None:
        """Change some columns of items; vectors and other columns stay.

        Raises:
            UserError: for an unknown id.
        """
        ...

    def remove(self, ids: Sequence[str]) -> None:
        """Remove items; unknown ids are skipped."""
        ...

    def search(
        self, vectors: NDArray[np.float32], k: int, where: Condition | None = None, *, exact: bool = False
    ) -> list[list[VectorHit]]:
        """The k nearest items of each query (Q, D), best first; fewer where fewer satisfy the condition.

        Items with equal scores are ordered by id. With ``exact``, all items are compared, also in a large index.
        """
        ...

    def vectors(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """The stored vectors (N, D) in the order of ``ids``.

        Raises:
            UserError: for an unknown id.
        """
        ...

    def __len__(self) -> int: ...

    def optimize(
        self,
        track: Track = silent,
        *,
        queries: Callable[[], NDArray[np.float32]] | None = None,
        purge: bool = False,
    ) -> None:
        """Compact the storage after writing, and build or update an approximate index where that is faster.

        Args:
            track: shows progress.
            queries: gives vectors that are typical queries; the recall is measured with them as well.
            purge: delete removed items from all files.
        """
        ...

    def restore(self, version: int | None) -> None:
        """Return to an earlier version, undoing later writes; does nothing for engines without versions."""
        ...

    def drop_versions(self, keep: int | None = None) -> None:
        """Delete the versions before ``keep``, or all but the present one, and the files of interrupted writes.

        Only the single writer may call it. ``keep`` is the oldest version that a reader may have open: a library passes
        the version of its manifest, or an older one for readers that have not read the new manifest yet.
        """
        ...
