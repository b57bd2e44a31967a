"""What a caption claims, apart from its words."""

from __future__ import annotations

import json
from dataclasses import dataclass

Constraint = tuple[str, tuple[str, ...]]
"""a fact's name, and the values it may have; a general word such as "vehicle" allows several"""


@dataclass(frozen=True)
class Pattern:
    """What one noun phrase says of what it names."""

    constraints: tuple[Constraint, ...]
    count: int | None = None
    """exactly so many things are like this; None: at least one is"""


@dataclass(frozen=True)
class Query:
    """The claims of a caption: things that are there, how they lie to each other, where and when."""

    patterns: tuple[Pattern, ...]
    links: tuple[tuple[int, str, int], ...] = ()
    """(pattern, relation, pattern); with a count, the relation holds for each thing of the group"""
    settings: tuple[str, ...] = ()
    times: tuple[str, ...] = ()

    def to_json(self) -> str:
        """For the captions table."""
        return json.dumps(
            {
                "things": [
                    {"is": dict(p.constraints), **({"count": p.count} if p.count else {})} for p in self.patterns
                ],
                "links": self.links,
                "settings": self.settings,
                "times": self.times,
            },
            ensure_ascii=False,
        )
