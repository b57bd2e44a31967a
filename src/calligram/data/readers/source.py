"""What every reader is given, and what it must be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from calligram.data.collection import SPLITS
from calligram.data.draft import Draft, Problems
from calligram.errors import UserError
from calligram.files import text_fraction


@dataclass(frozen=True)
class ImportSource:
    """Where to read from."""

    path: Path
    """the file or folder the user named"""
    images: Path | None = None
    """folder of the pictures, where the user named one"""
    scratch: Path | None = None
    """folder for arrays made while reading; removed once the collection is written"""

    @property
    def folder(self) -> Path:
        """The folder named, or the one that holds the file named."""
        return self.path if self.path.is_dir() else self.path.parent


DatasetReader = Callable[[ImportSource, Problems], Draft]


def first_file(folders: Iterable[Path], *names: str) -> Path | None:
    """The first of these files that exists, folder by folder."""
    return next((f / n for f in folders for n in names if (f / n).is_file()), None)


def required_file(folders: Iterable[Path], *names: str, what: str) -> Path:
    """As ``first_file``, refusing when there is none.

    Raises:
        UserError: naming what was looked for and where.
    """
    places = list(folders)
    found = first_file(places, *names)
    if found is None:
        raise UserError(f"no {what} in {', '.join(map(str, places))}; expected {' or '.join(names)}")
    return found


# Split names as sources write them, and splits for sources that have none.

SPLIT_NAMES = {
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
DEFAULT_SPLIT_SHARES = (0.8, 0.1, 0.1)


def canonical_split(name: str | None, item: str, problems: Problems) -> str | None:
    """``train``, ``dev`` or ``test``; None for no name, and for one that is not known, which is reported."""
    if name is None or not name.strip():
        return None
    known = SPLIT_NAMES.get(name.strip().lower())
    if known is None:
        problems.repair("unknown split", item, f"'{name}' is none of {', '.join(SPLIT_NAMES)}; read as no split")
    return known


def split_by_hash(key: str, shares: Sequence[float] = DEFAULT_SPLIT_SHARES) -> str:
    """A split that depends on ``key`` alone, so that adding images never moves others.

    >>> [split_by_hash(f"{n}.jpg") for n in range(3)] == [split_by_hash(f"{n}.jpg") for n in range(3)]
    True
    """
    place = text_fraction(key)
    train, dev, _ = shares
    return "train" if place < train else "dev" if place < train + dev else "test"


def first_split_of_each(given: Iterable[tuple[str, str]], problems: Problems) -> dict[str, str]:
    """The split of each image from pairs of image and split; an image given several is reported once."""
    splits: dict[str, dict[str, None]] = {}
    for image, split in given:
        splits.setdefault(image, {})[split] = None
    for image, names in splits.items():
        if len(names) > 1:
            problems.repair("image in two splits", image, f"{' and '.join(names)}; the first is kept")
    return {image: next(iter(names)) for image, names in splits.items()}


def assign_missing_splits(draft: Draft, shares: Sequence[float], problems: Problems) -> None:
    """Split a draft that has captions but no split anywhere; images of one identity stay together.

    The hash of the id decides, but where it leaves a split without any captioned image, one is moved there.

    Raises:
        UserError: when the shares do not sum to one.
    """
    if min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
        raise UserError(f"shares of train, dev and test must be at least 0 and sum to 1, got {tuple(shares)}")
    if not draft.captions or any(record.split for record in draft.images):
        return
    for record in draft.images:
        record.split = split_by_hash(split_key(record.id, record.identity), shares)
    draft.about["splits"] = "by hash of the id, {:g}/{:g}/{:g}".format(*shares)
    _fill_empty_splits(draft, [name for name, share in zip(SPLITS, shares, strict=True) if share > 0], problems)


def _fill_empty_splits(draft: Draft, wanted: Sequence[str], problems: Problems) -> None:
    """Give every wanted split a captioned image, as long as there are enough of them."""
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


def key_to_move(split_of: dict[str, str]) -> str:
    """The key with the smallest hash in the fullest split; train is the fullest where several are."""
    held = list(split_of.values())
    fullest = max(SPLITS, key=held.count)
    return min((key for key, split in split_of.items() if split == fullest), key=text_fraction)


def split_key(image: str, identity: int | None) -> str:
    """What is hashed of an image: its id, or its identity, so that images of one identity stay together."""
    return image if identity is None else f"identity {identity}"
