"""Where the regions of a library's pictures lie that its matcher kept."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calligram.data.collection import MANIFEST, Collection
from calligram.errors import UserError
from calligram.evaluation.attention import row_of
from calligram.features.inputs import ImageInput
from calligram.features.part_places import boxes_of, cells_of
from calligram.features.stored import StoredInput
from calligram.search.library import Item

Floats = NDArray[np.float32]


class ItemPlaces:
    """Finds them; collections are opened once. Any number of threads may use it."""

    def __init__(self, images: ImageInput) -> None:
        self._input = images
        self._opened: dict[str, tuple[int, Collection]] = {}
        self._opening = threading.Lock()

    def of(self, item: Item, count: int) -> Floats | None:
        """The boxes of an item's ``count`` regions, as ``Seen`` has them; None where they are not known.

        Cells follow from the picture's size. Boxes of stored features are read from the collection that the item came
        from, if it is still there.
        """
        if not isinstance(self._input, StoredInput):
            return cells_of(self._input, (item.width, item.height), count)
        try:
            collection = self._collection(str(item.metadata["source"]))
            return boxes_of(self._input, collection, row_of(collection, str(item.metadata["path"])))
        except (UserError, OSError):  # moved or changed since: what words weigh can be said all the same
            return None

    def _collection(self, root: str) -> Collection:
        """The collection as it is now: regions may have been added."""
        stamp = (Path(root) / MANIFEST).stat().st_mtime_ns
        with self._opening:
            known = self._opened.get(root)
            if known is None or known[0] != stamp:
                known = self._opened[root] = stamp, Collection.open(root)
            return known[1]
