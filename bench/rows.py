"""A measured number, printed as it is found and kept for ``results/bench.json``."""

from __future__ import annotations

Row = dict[str, object]


def row(what: str, value: float, unit: str) -> Row:
    print(f"{what}: {value:.3g} {unit}", flush=True)
    return {"what": what, "value": float(f"{value:.4g}"), "unit": unit}
