"""Vectors with filter columns: what the rest of a search knows of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calligram.progress import Track, silent
from calligram.search.filters.conditions import Condition


class VectorHit(NamedTuple):
    """An item that was found, and its cosine with the query."""

    id: str
    score: float


class Index(Protocol):
    """Vectors of length one under ids, with columns to filter by, searched by cosine.

    Vectors are brought to length one when they are added. Columns are numbers, text or flags (see
    ``filter_columns.kinds_of``); a table's rows are in the order of the ids given with it, and a later call may bring
    columns that earlier ones did not have. All methods may be called from many threads; one writer at a time.
    """

    @property
    def dim(self) -> int:
        """Dimensions of the vectors."""
        ...

    @property
    def version(self) -> int | None:
        """The state this index reads, for opening it again as it is now; None where the engine keeps no states."""
        ...

    def add(self, ids: Sequence[str], vectors: NDArray[np.float32], columns: pa.Table) -> None:
        """Add items, or replace those whose id is there: all of them or, if anything fails, none.

        Raises:
            UserError: for vectors of another dimension, of length zero or not finite, and for ids given twice.
        """
        ...

    def update(self, ids: Sequence[str], columns: pa.Table) -> None:
        """Give items that are there other values in ``columns``; vectors and other columns stay.

        Raises:
            UserError: for an id that is not there.
        """
        ...

    def remove(self, ids: Sequence[str]) -> None:
        """Take items out; ids that are not there are passed over."""
        ...

    def search(self, vectors: NDArray[np.float32], k: int, where: Condition | None = None) -> list[list[VectorHit]]:
        """The k nearest items of each query (Q, D), best first; fewer only where fewer satisfy the condition."""
        ...

    def vectors(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """The stored vectors (N, D) in the order of ``ids``.

        Raises:
            UserError: for an id that is not there.
        """
        ...

    def __len__(self) -> int: ...

    def optimize(self, track: Track = silent) -> None:
        """Tidy up after writing: join small pieces, build or extend an approximate structure where it pays."""
        ...

    def restore(self, version: int | None) -> None:
        """Go back to an earlier state, undoing what was written after it; nothing where the engine keeps no states."""
        ...

    def drop_versions(self, keep: int | None = None) -> None:
        """Delete the states before ``keep``, or all but the present one, and what an interrupted write left behind.

        Call it as the only writer, and name the oldest state that anybody may still read: a library passes the version
        its manifest names, or an older one while readers may not have looked at the new manifest yet.
        """
        ...
