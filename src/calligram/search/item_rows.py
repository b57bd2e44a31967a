"""Rows of the items table: what is written of a picture, from the worker's row and what the source says."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from calligram.search import columns
from calligram.search.fusion import composed
from calligram.search.metadata import FACTS
from calligram.search.scanning import Entry
from calligram.search.sources import About
from calligram.search.where import Kind


def item_row(
    id: str, entry: Entry, number: int, about: About, seen: Mapping[str, Any], kinds: dict[str, Kind]
) -> dict[str, Any]:
    """A row for a picture that is there.

    Args:
        number: of the source.
        seen: content hash, size in pixels, and facts or metadata as JSON: from the worker, or of an item with the same
            content.
        kinds: learns columns that are new.
    """
    place = PurePosixPath(entry.key)
    return {
        **{"id": id, "source": number, "key": entry.key, "file": entry.file, "offset": entry.offset},
        **{"name": place.name, "folder": "" if str(place.parent) == "." else str(place.parent)},
        **{"bytes": entry.size, "mtime": entry.mtime, "hash": seen["hash"], "state": "present"},
        **{"width": seen.get("width"), "height": seen.get("height")},
        **_described(entry.key, about, seen, kinds),
    }


def described_again(old: Mapping[str, Any], entry: Entry, about: About, kinds: dict[str, Kind]) -> dict[str, Any]:
    """The row of an unchanged picture of which the source says something else now."""
    return {**old, **_described(entry.key, about, old, kinds)}


def _described(key: str, about: About, seen: Mapping[str, Any], kinds: dict[str, Kind]) -> dict[str, Any]:
    inside = json.loads(seen.get("facts") or seen.get("metadata") or "{}")
    facts = {name: inside[name] for name in FACTS if name in inside}
    metadata = columns.fitted({**facts, **about.columns}, kinds)
    return {
        "metadata": json.dumps(metadata, ensure_ascii=False),
        "digest": about.digest,
        "captions": list(about.captions),
        "words": words_of(key, about.captions),
    }


def words_of(key: str, captions: tuple[str, ...]) -> str:
    """What a full-text search looks through: the words of the path, without the suffix, and the captions."""
    path = re.sub(r"\.\w{1,5}$", "", composed(key))
    return "\n".join((" ".join(re.findall(r"[^\W_]+", path)), *(composed(caption) for caption in captions)))
