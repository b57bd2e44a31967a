"""Finished parts of a run over a collection, each a file that is there whole or not at all."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calligram.errors import UserError

Ints = NDArray[np.int64]
SCRATCH = ".regions"
_DAMAGE = (zipfile.BadZipFile, ValueError, OSError, KeyError, EOFError)


@dataclass(frozen=True)
class Chunk:
    """What was found in some images; the regions of all of them stand one after the other."""

    images: Ints
    """(I,) row of each image"""
    counts: Ints
    """(I,) regions of each"""
    boxes: NDArray[np.float32]
    """(R, 4)"""
    scores: NDArray[np.float32]
    """(R,) NaN where the method gives none"""
    labels: NDArray[np.str_]
    """(R,) empty where the method gives none"""
    attributes: NDArray[np.str_]
    """(R,)"""
    features: NDArray[np.float16]
    """(I, top, D); (I, 0, 0) without a backbone"""
    seconds: NDArray[np.float64]
    """time it took, a single number"""

    def save(self, folder: Path) -> None:
        """Write under the next free number; a process that dies here leaves only a ``.part`` file."""
        number = 1 + max((int(f.stem) for f in folder.glob("*.npz")), default=-1)
        partial = folder / f"{number:06d}.part"
        with partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **asdict(self))
        os.replace(partial, folder / f"{number:06d}.npz")


def read_chunks(folder: Path) -> Iterator[Chunk]:
    """The finished chunks, one in memory at a time."""
    for file in sorted(folder.glob("*.npz")):
        with np.load(file, allow_pickle=False) as content:
            chunk = Chunk(**{name: content[name] for name in content.files})
        yield chunk


def images_done(folder: Path, stored: Ints) -> Ints:
    """Rows of the images in finished chunks.

    Damaged chunks are removed, so that their images are done again, and so are those whose images are ``stored`` in
    the collection: their run died between storing and cleaning up.
    """
    done: list[int] = []
    for file in sorted(folder.glob("*.npz")):
        try:
            with np.load(file, allow_pickle=False) as content:
                images = content["images"]
        except _DAMAGE:
            file.unlink()
            continue
        if np.isin(images, stored).all():
            file.unlink()
        else:
            done += images.tolist()
    return np.array(done, dtype=np.int64)


@contextmanager
def scratch(collection: Path, source: str, key: str) -> Iterator[Path]:
    """The folder for the chunks of one source under one key, held by one process at a time.

    Left as it is when the work fails; removed when it succeeds, with those of other keys.

    Raises:
        UserError: when another process holds it.
    """
    folder = collection / SCRATCH / f"{source}@{key}"
    folder.mkdir(parents=True, exist_ok=True)
    with (collection / SCRATCH / f"{source}.lock").open("w") as lock:
        try:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass  # no such locks on this system
        except OSError as error:
            raise UserError(f"another process is looking for the regions '{source}' in {collection}") from error
        yield folder
        for finished in (collection / SCRATCH).glob(f"{source}@*"):
            shutil.rmtree(finished, ignore_errors=True)
