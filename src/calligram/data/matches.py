"""The relation between visual items and texts that match. Training, mining and evaluation all use it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:  # a search imports this module and needs no scipy
    from scipy.sparse import csr_matrix

Ints = NDArray[np.int64]


class Matches:
    """A sparse, many-to-many relation between V visual items and T texts.

    It makes no assumptions: an item may match nothing, a text may match several images, and two images may share a
    text.
    """

    def __init__(self, visual: ArrayLike, text: ArrayLike, shape: tuple[int, int]) -> None:
        visual, text = np.asarray(visual, dtype=np.int64), np.asarray(text, dtype=np.int64)
        if visual.shape != text.shape or visual.ndim != 1:
            raise ValueError(f"visual and text must be lists of equal length, got {visual.shape} and {text.shape}")
        for name, index, size in (("visual", visual, shape[0]), ("text", text, shape[1])):
            if index.size and (index.min() < 0 or index.max() >= size):
                raise ValueError(f"{name} indices must lie in 0..{size - 1}, got {index.min()}..{index.max()}")
        from scipy.sparse import csr_matrix

        self._rows = csr_matrix((np.ones(len(visual), dtype=np.int32), (visual, text)), shape=shape)
        self._rows.sum_duplicates()
        self._rows.data[:] = 1
        self._columns = self._rows.tocsc()
        self._columns.sort_indices()

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[int, int]], shape: tuple[int, int]) -> Matches:
        """Build from index pairs (visual, text); a repeated pair counts once."""
        array = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
        return cls(array[:, 0], array[:, 1], shape)

    @classmethod
    def from_groups(cls, visual: Sequence[int] | Ints, text: Sequence[int] | Ints) -> Matches:
        """Match items with equal labels, such as identities. A negative label matches nothing."""
        visual, text = np.asarray(visual, dtype=np.int64), np.asarray(text, dtype=np.int64)
        order = np.argsort(text, kind="stable")
        start, stop = np.searchsorted(text[order], visual, "left"), np.searchsorted(text[order], visual, "right")
        count = np.where(visual >= 0, stop - start, 0)
        rows = np.repeat(np.arange(len(visual)), count)
        return cls(rows, order[_joined_ranges(start, count)], (len(visual), len(text)))

    @property
    def shape(self) -> tuple[int, int]:
        """(V, T)."""
        return int(self._rows.shape[0]), int(self._rows.shape[1])

    def __len__(self) -> int:
        """Number of matching pairs."""
        return int(self._rows.nnz)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Matches):
            return NotImplemented
        return self.shape == other.shape and (self._rows != other._rows).nnz == 0

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Matches({len(self)} pairs, {self.shape[0]} visuals x {self.shape[1]} texts)"

    @property
    def T(self) -> Matches:  # noqa: N802  the name every array library uses
        """The transposed relation, with texts as rows."""
        visual, text = self.pairs()
        return Matches(text, visual, (self.shape[1], self.shape[0]))

    def texts_of(self, visual: int) -> Ints:
        """Texts that match one visual item, in ascending order."""
        return self._slice(self._rows, visual)

    def visuals_of(self, text: int) -> Ints:
        """Visual items that match one text, in ascending order."""
        return self._slice(self._columns, text)

    @staticmethod
    def _slice(matrix: csr_matrix, index: int) -> Ints:
        found: Ints = matrix.indices[matrix.indptr[index] : matrix.indptr[index + 1]].astype(np.int64)
        return found

    def pairs(self) -> tuple[Ints, Ints]:
        """All matches as two aligned arrays, sorted by visual item and then by text."""
        visual = np.repeat(np.arange(self.shape[0]), np.diff(self._rows.indptr))
        return visual.astype(np.int64), self._rows.indices.astype(np.int64)

    def counts(self) -> tuple[Ints, Ints]:
        """Number of texts of each visual item (V,), and number of visual items of each text (T,)."""
        return np.diff(self._rows.indptr).astype(np.int64), np.diff(self._columns.indptr).astype(np.int64)

    def among(self, visuals: Ints, texts: Ints) -> NDArray[np.bool_]:
        """Whether each pair of two aligned arrays matches, (N,)."""
        if not len(visuals):
            return np.zeros(0, dtype=bool)
        return np.asarray(self._rows[visuals, texts]).ravel() > 0

    def target(self, visuals: Ints, texts: Ints) -> NDArray[np.int8]:
        """The target matrix (I, T) of these items: +1 for a match, -1 otherwise."""
        # Without matrices of scipy: a training step calls this, and selecting rows and columns there takes ten times as
        # long.
        start = self._rows.indptr[visuals]
        count = self._rows.indptr[visuals + 1] - start
        rows, columns = np.repeat(np.arange(len(visuals)), count), self._rows.indices[_joined_ranges(start, count)]
        order = np.argsort(texts, kind="stable")
        first, last = (np.searchsorted(texts, columns, side, sorter=order) for side in ("left", "right"))
        found = np.full((len(visuals), len(texts)), -1, dtype=np.int8)
        found[np.repeat(rows, last - first), order[_joined_ranges(first, last - first)]] = 1
        return found

    def select(self, visuals: Ints, texts: Ints) -> Matches:
        """The relation restricted to these items, which are renumbered by their position in the two arrays."""
        block = self._rows[visuals][:, texts].tocoo()
        return Matches(block.row, block.col, (len(visuals), len(texts)))

    def minus(self, other: Matches) -> Matches:
        """The pairs that are not in ``other``."""
        rest = (self._rows - self._rows.multiply(other._rows)).tocoo()
        kept = rest.data > 0
        return Matches(rest.row[kept], rest.col[kept], self.shape)

    def plus(self, other: Matches) -> Matches:
        """The pairs of this relation and of ``other``."""
        visual, text = (np.concatenate(both) for both in zip(self.pairs(), other.pairs(), strict=True))
        return Matches(visual, text, self.shape)

    def groups(self) -> tuple[Ints, Ints]:
        """A class label for each item: the connected component of the graph of matches.

        Labels are numbered in the order of the visual items, then of texts that match nothing.
        """
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import connected_components

        v, t = self.shape
        visual, text = self.pairs()
        graph = csr_matrix((np.ones(len(visual)), (visual, text + v)), shape=(v + t, v + t))
        labels = connected_components(graph, directed=False)[1]
        _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
        renumbered = np.argsort(np.argsort(first))[inverse].astype(np.int64)
        return renumbered[:v], renumbered[v:]

    def shared_texts(self) -> Matches:
        """Pairs of different visual items that share a text: (V, V)."""
        together = (self._rows @ self._rows.T).tocoo()
        off = together.row != together.col
        return Matches(together.row[off], together.col[off], (self.shape[0], self.shape[0]))

    def sharing(self, visuals: Ints, others: Ints) -> NDArray[np.bool_]:
        """Whether visual items share a text with other visual items, (V, O)."""
        found: NDArray[np.bool_] = (self._rows[visuals] @ self._rows[others].T).toarray() > 0
        return found


def _joined_ranges(starts: Ints, counts: Ints) -> Ints:
    """Concatenate the ranges of ``counts`` integers from ``starts`` on."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(counts.sum())
