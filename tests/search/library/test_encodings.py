from __future__ import annotations

import numpy as np
import pyarrow as pa

from calligram.search.library.library import encodings
from calligram.search.library.tables import SCHEMAS


def test_rows_of_parts_become_tensors_in_any_order_and_number():
    def row(id: str, count: int, number: float) -> dict[str, object]:
        parts = np.full((count, 3), number, np.float16)
        mask = np.arange(count) % 2 == 0
        vector = np.full(2, number, np.float32)
        return {"id": id, "vector": vector.tobytes(), "parts": parts.tobytes(), "count": count, "mask": mask.tobytes()}

    def table(*rows: dict[str, object]) -> pa.Table:
        return pa.Table.from_pylist(list(rows), schema=SCHEMAS["parts"])

    same = pa.concat_tables([table(row("a", 2, 1), row("b", 2, 2)), table(row("c", 2, 3))])
    found = encodings(same.slice(1), [1, 0, 1])
    assert found.vectors[:, 0].tolist() == [3, 2, 3]
    assert found.parts[:, 1, 2].tolist() == [3, 2, 3]
    assert found.mask.tolist() == [[True, False]] * 3
    uneven = encodings(table(row("a", 1, 1), row("b", 3, 2)), [1, 0])
    assert uneven.parts.shape == (2, 3, 3)
    assert uneven.mask.tolist() == [[True, False, True], [True, False, False]]
    assert encodings(table(row("a", 0, 1), row("b", 0, 2)), [1]).parts is None
