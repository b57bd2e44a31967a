"""What was wrong with the input, item by item, so that nothing is lost in silence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from calligram.errors import UserError


@dataclass(frozen=True)
class Problem:
    """One item that was skipped, or kept with a change."""

    kind: str
    item: str
    detail: str
    skipped: bool


@dataclass
class Problems:
    """A list of problems; with ``strict`` the first item skipped or mended raises instead."""

    strict: bool = False
    found: list[Problem] = field(default_factory=list)

    def skip(self, kind: str, item: str, detail: str = "") -> None:
        """Record that ``item`` was left out. ``kind`` names the sort of problem, for counting."""
        self._refuse_if_strict(kind, item, detail, "skipped")
        self.found.append(Problem(kind, item, detail, skipped=True))

    def mend(self, kind: str, item: str, detail: str = "") -> None:
        """Record that ``item`` was wrong and kept after a repair that may not be what was meant."""
        self._refuse_if_strict(kind, item, detail, "kept, mended")
        self.found.append(Problem(kind, item, detail, skipped=False))

    def note(self, kind: str, item: str, detail: str = "") -> None:
        """Record that ``item`` was kept and is usable but looks odd; never refused."""
        self.found.append(Problem(kind, item, detail, skipped=False))

    def _refuse_if_strict(self, kind: str, item: str, detail: str, otherwise: str) -> None:
        if self.strict:
            tail = f": {detail}" if detail else ""
            raise UserError(f"{kind}: {item}{tail} (refused because of --strict; without it the item is {otherwise})")

    def summary(self) -> list[str]:
        """One line for each kind of problem: how many, and the first few items."""
        return summary_lines(self.found)

    def rows(self) -> list[dict[str, object]]:
        """For the collection's table of problems."""
        return [asdict(p) for p in self.found]


def summary_lines(found: Iterable[Problem]) -> list[str]:
    """One line for each kind of problem, the commonest first: how many, and the first few items."""
    kinds: dict[tuple[str, bool], list[str]] = {}
    for problem in found:
        kinds.setdefault((problem.kind, problem.skipped), []).append(problem.item)
    lines = []
    for (kind, skipped), items in sorted(kinds.items(), key=lambda entry: -len(entry[1])):
        few = ", ".join(dict.fromkeys(items[:3])) + (", ..." if len(items) > 3 else "")
        lines.append(f"{len(items)} {'skipped' if skipped else 'noted'}: {kind} ({few})")
    return lines
