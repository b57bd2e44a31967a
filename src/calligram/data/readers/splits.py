"""Split names as sources write them, and splits for sources that have none."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from calligram.data.draft import Draft, ImageRecord
from calligram.data.problems import Problems
from calligram.errors import UserError

NAMES = {
    "train": "train",
    "training": "train",
    # Karpathy's remainder of COCO's validation images, trained on by everyone since.
    "restval": "train",
    "dev": "dev",
    "val": "dev",
    "valid": "dev",
    "validation": "dev",
    "test": "test",
    "testing": "test",
}
SHARES = (0.8, 0.1, 0.1)


def canonical(name: str | None, item: str, problems: Problems) -> str | None:
    """``train``, ``dev`` or ``test``; None for no name, and for one that is not known, which is reported."""
    if name is None or not name.strip():
        return None
    known = NAMES.get(name.strip().lower())
    if known is None:
        problems.mend("unknown split", item, f"'{name}' is none of {', '.join(NAMES)}; the image is in no split")
    return known


def by_hash(key: str, shares: Sequence[float] = SHARES) -> str:
    """A split that depends on ``key`` alone, so that adding images never moves others.

    >>> [by_hash(f"{n}.jpg") for n in range(3)] == [by_hash(f"{n}.jpg") for n in range(3)]
    True
    """
    place = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64
    train, dev, _ = shares
    return "train" if place < train else "dev" if place < train + dev else "test"


def assign_missing(draft: Draft, shares: Sequence[float]) -> None:
    """Split a draft that has captions but no split anywhere; images of one identity stay together.

    Raises:
        UserError: when the shares do not sum to one.
    """
    if min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
        raise UserError(f"shares of train, dev and test must be at least 0 and sum to 1, got {tuple(shares)}")
    if not draft.captions or any(record.split for record in draft.images):
        return
    for record in draft.images:
        record.split = by_hash(_key(record), shares)
    draft.about["splits"] = "by hash of the id, {:g}/{:g}/{:g}".format(*shares)


def _key(record: ImageRecord) -> str:
    return record.id if record.identity is None else f"identity {record.identity}"
