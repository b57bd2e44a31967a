"""Words that say what is meant, and those that do not."""

from __future__ import annotations

import re
from collections.abc import Iterable

STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        """a an the this that these those his her its their and or but of in on at by to from with into over under near
        is are was were be been being has have had it he she they there as for while some""",
    )
)
"""words that tell nothing: no piece of a caption begins or ends with one"""


def without_stop_words(words: Iterable[str]) -> list[str]:
    """Words that say what is meant."""
    return [word for word in words if word.lower() not in STOP_WORDS]
