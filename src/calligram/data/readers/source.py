"""The input and the type of a reader, and the assignment of splits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from calligram.data.collection import SPLITS
from calligram.data.draft import Draft, Problems
from calligram.errors import UserError

SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    # In Karpathy's split of COCO, ``restval`` is the rest of the validation images. All published work trains on it.
    "restval": "train",
    "dev": "dev",
    "val": "dev",
    "valid": "dev",
    "validation": "dev",
    "test": "test",
    "testing": "test",
}
DEFAULT_SPLIT_SHARES = (0.8, 0.1, 0.1)


@dataclass(frozen=True)
class ImportSource:
    """The source of an import."""

    path: Path
    """the file or folder that the user gave"""
    images: Path | None = None
    """folder of the pictures, if the user gave one"""
    scratch: Path | None = None
    """folder for arrays that a reader writes; removed when the collection is written"""

    @property
    def folder(self) -> Path:
        """The folder given by the user, or the folder of the given file."""
        return self.path if self.path.is_dir() else self.path.parent


DatasetReader = Callable[[ImportSource, Problems], Draft]


def first_file(folders: Iterable[Path], *names: str) -> Path | None:
    """The first existing file with one of these names; folders are searched in order."""
    return next((f / n for f in folders for n in names if (f / n).is_file()), None)


def required_file(folders: Iterable[Path], *names: str, what: str) -> Path:
    """As ``first_file``, but raise an error when no file exists.

    Args:
        what: description of the file, for the error.

    Raises:
        UserError: with the expected names and the searched folders.
    """
    places = list(folders)
    found = first_file(places, *names)
    if found is None:
        raise UserError(f"no {what} in {', '.join(map(str, places))}; expected {' or '.join(names)}")
    return found


def canonical_split(name: str | None, item: str, problems: Problems) -> str | None:
    """Map a split name of a source to ``train``, ``dev`` or ``test``.

    The result is None for an empty name, and for an unknown name, which is reported.
    """
    if name is None or not name.strip():
        return None
    known = SPLIT_NAMES.get(name.strip().lower())
    if known is None:
        problems.repair("unknown split", item, f"'{name}' is none of {', '.join(SPLIT_NAMES)}; read as no split")
    return known


def split_by_hash(key: str, shares: Sequence[float] = DEFAULT_SPLIT_SHARES) -> str:
    """A split that depends on ``key`` only, so that new images do not move other images.

    >>> [split_by_hash(f"{n}.jpg") for n in range(3)] == [split_by_hash(f"{n}.jpg") for n in range(3)]
    True
    """
    fraction = hash_fraction(key)
    train, dev, _ = shares
    return "train" if fraction < train else "dev" if fraction < train + dev else "test"


def first_split_of_each(given: Iterable[tuple[str, str]], problems: Problems) -> dict[str, str]:
    """The first split of each image, from pairs of image and split; images with several splits are reported."""
    splits: dict[str, dict[str, None]] = {}
    for image, split in given:
        splits.setdefault(image, {})[split] = None
    for image, names in splits.items():
        if len(names) > 1:
            problems.repair("image in two splits", image, f"{' and '.join(names)}; the first is kept")
    return {image: next(iter(names)) for image, names in splits.items()}


def assign_missing_splits(draft: Draft, shares: Sequence[float], problems: Problems) -> None:
    """Assign splits to a draft that has captions and no splits. Images of one identity stay together.

    A hash of the id decides. If a split gets no captioned image, one is moved there.

    Raises:
        UserError: when a share is negative or the shares do not sum to 1.
    """
    if min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
        raise UserError(f"shares of train, dev and test must be at least 0 and sum to 1, got {tuple(shares)}")
    if not draft.captions or any(record.split for record in draft.images):
        return
    for record in draft.images:
        record.split = split_by_hash(split_key(record.id, record.identity), shares)
    draft.about["splits"] = "by hash of the id, {:g}/{:g}/{:g}".format(*shares)
    _fill_empty_splits(draft, [name for name, share in zip(SPLITS, shares, strict=True) if share > 0], problems)


def split_key(image: str, identity: int | None) -> str:
    """The key of an image for ``split_by_hash``: its identity if it has one, otherwise its id."""
    return image if identity is None else f"identity {identity}"


def key_to_move(split_of: dict[str, str]) -> str:
    """The key to move to an empty split: the one with the smallest hash in the largest split (of equals, the first)."""
    splits = list(split_of.values())
    largest = max(SPLITS, key=splits.count)
    return min((key for key, split in split_of.items() if split == largest), key=hash_fraction)


def _fill_empty_splits(draft: Draft, wanted: Sequence[str], problems: Problems) -> None:
    """Give every wanted split a captioned image, if there are enough captioned images."""
    described = {image for caption in draft.captions if caption.text.strip() for image in caption.images}
    split_of = {
        split_key(record.id, record.identity): str(record.split) for record in draft.images if record.id in described
    }
    empty = [name for name in wanted if name not in split_of.values()]
    if empty and len(split_of) < len(wanted):
        count = f"{len(split_of)} (images of one identity count once) for {', '.join(wanted)}"
        detail = f"{count}; {', '.join(empty)} without any. Add captioned images, or name the splits in the source"
        problems.note("too few captioned images to make splits", draft.name, detail)
        return
    for name in empty:
        split_of[key_to_move(split_of)] = name
    for record in draft.images:
        split = split_of.get(split_key(record.id, record.identity), record.split)
        if split != record.split:
            detail = f"from {record.split} to {split}, which had no captioned image"
            problems.note("image moved to another split than its hash says", record.id, detail)
            record.split = split


def hash_fraction(text: str) -> float:
    """A number in [0, 1) that depends only on the text (the first 64 bits of its SHA-256)."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
