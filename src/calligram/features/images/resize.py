"""Pictures resized to squares, and many pictures decoded on many cores.

Python runs one thread of a process at a time, and a fifth of the time that a picture takes is spent in Python. So the
threads of one process use about five cores: on 16 cores they decoded 0.34 of what 16 times one core does. With three
cores or more, processes decode. This module does without torch, so that they start quickly.
"""

from __future__ import annotations

import json
import logging
import math
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from calligram.data.collection import Collection
from calligram.data.pairing import Visuals
from calligram.data.pictures import PictureError, StoredPictures, core_share, map_in_order, worker_threads

log = logging.getLogger(__name__)

Pixels = NDArray[np.uint8]
Ints = NDArray[np.int64]
Fit = Literal["squash", "crop"]
"""squash: the whole image, distorted to a square; crop: the central square"""

REDUCING_GAP = 3.0
"""an image is first reduced by an integer factor, which is fast; its sides stay at least this many times too large"""
MIN_CORES = 3
"""number of cores from which on processes decode; threads use two cores almost fully"""
MIN_PICTURES = 250
"""number of pictures for each process, below which threads decode: a process starts in half a second"""
BLOCK_PICTURES = 16
"""pictures that a process decodes at a time"""


def visible_box(width: int, height: int, fit: Fit) -> tuple[int, int, int, int]:
    """Return the part of an image that a square covers: left, top, right and bottom in pixels."""
    if fit == "squash":
        return 0, 0, width, height
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def reduce_picture(image: Image.Image, size: int, fit: Fit) -> Image.Image:
    """Reduce each side of the image by its own integer factor: the first step of ``resize_picture``.

    Returns the image itself if both factors are 1, or if ``fit`` is crop.
    """
    factors = tuple(int(side / size / REDUCING_GAP) or 1 for side in image.size)
    return image if fit == "crop" or factors == (1, 1) else image.reduce((factors[0], factors[1]))


def resize_picture(image: Image.Image, size: int, fit: Fit, reduced: Image.Image | None = None) -> NDArray[np.uint8]:
    """Resize one RGB image to (3, size, size).

    Args:
        reduced: result of ``reduce_picture`` for the image, if it was computed before.
    """
    original = image.size
    if fit == "crop":
        image = image.crop(visible_box(*image.size, fit))
    elif (image := reduced or reduce_picture(image, size, fit)).size != original:
        # The last row and column of a reduced image may cover fewer pixels than the others.
        factors = [int(side / size / REDUCING_GAP) or 1 for side in original]
        part = (0, 0, original[0] / factors[0], original[1] / factors[1])
        image = image.resize((size, size), Image.Resampling.BICUBIC, part)
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BICUBIC, reducing_gap=REDUCING_GAP)
    return np.ascontiguousarray(np.asarray(image, dtype=np.uint8).transpose(2, 0, 1))


def least_side(size: int) -> int:
    """Return the least length of the sides of a decoded picture that is resized to a square of ``size``."""
    return math.ceil(REDUCING_GAP * size)


def decode_pictures(visuals: Visuals, rows: Ints, size: int, fit: Fit) -> Iterator[Pixels]:
    """Decode items of ``visuals`` on all cores of this process's share; yield each as (3, size, size), in order.

    Raises:
        PictureError: when a picture cannot be decoded.
    """
    cores = core_share()
    stored = visuals.pictures if isinstance(visuals.pictures, StoredPictures) and visuals.boxes is None else None
    if stored is None or cores < MIN_CORES or len(rows) < cores * MIN_PICTURES:

        def decode_one(row: int) -> Pixels:
            return resize_picture(visuals.open(row, least_side(size)), size, fit)

        with worker_threads() as pool:
            yield from map_in_order(pool, decode_one, rows.tolist(), 2 * BLOCK_PICTURES * cores)
        return
    images = visuals.rows[rows].tolist()
    blocks = [images[start : start + BLOCK_PICTURES] for start in range(0, len(images), BLOCK_PICTURES)]
    with _decoders(stored, cores, size, fit) as free, worker_threads() as pool:

        def decode_block(block: list[int]) -> Pixels:
            decoder = free.get()
            try:
                return decoder.decode(block)
            finally:
                free.put(decoder)

        for pixels in map_in_order(pool, decode_block, blocks, 2 * cores):
            yield from pixels


@contextmanager
def _decoders(pictures: StoredPictures, count: int, size: int, fit: Fit) -> Iterator[SimpleQueue[_Decoder]]:
    """Start processes; yield a queue of the free ones."""
    every = [_Decoder(pictures, size, fit) for _ in range(count)]
    free: SimpleQueue[_Decoder] = SimpleQueue()
    for decoder in every:
        free.put(decoder)
    try:
        yield free
    finally:
        for decoder in every:
            decoder.close()


class _Decoder:
    """A process that decodes pictures of a collection. One thread uses it at a time."""

    def __init__(self, pictures: StoredPictures, size: int, fit: Fit) -> None:
        self._pictures, self._size, self._fit = pictures, size, fit
        command = [sys.executable, "-P", "-m", __name__, str(pictures.folder), str(size), fit]
        # What ends it is met again, and reported, when this process decodes the same pictures.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout

    def decode(self, images: list[int]) -> Pixels:
        """Decode images of the collection, in this process if the other one has ended."""
        pixels = np.empty((len(images), 3, self._size, self._size), dtype=np.uint8)
        try:
            self._to.write(json.dumps(images).encode() + b"\n")
            self._to.flush()
            answer = json.loads(self._from.readline() or "null")
            if answer == "":
                _read_into(self._from, pixels.data.cast("B"))
                return pixels
        except (OSError, ValueError, EOFError):
            answer = None
        if answer is not None:
            raise PictureError(str(answer))
        log.debug("a process that decodes pictures has ended; they are decoded here")
        for place, image in enumerate(images):
            picture = self._pictures.open(image, least_side(self._size))
            pixels[place] = resize_picture(picture, self._size, self._fit)
        return pixels

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        with suppress(OSError):  # bytes that the process no longer reads
            self._to.close()
        self._from.close()
        self._process.wait()


def _read_into(source: IO[bytes], target: memoryview) -> None:
    """Fill the memory; reading does not hold the lock of Python.

    Raises:
        EOFError: when there are fewer bytes.
    """
    while target:
        count = source.readinto(target)  # type: ignore[attr-defined]  # typeshed leaves it out of IO
        if not count:
            raise EOFError
        target = target[count:]


def main(folder: str, size: str, fit: Fit) -> None:
    """Decode the images whose rows come as lines of JSON; write an empty string and their bytes, or an error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends this process
    pictures = Collection.open(Path(folder)).pictures
    for line in sys.stdin.buffer:
        try:
            opened = (pictures.open(row, least_side(int(size))) for row in json.loads(line))
            pixels = [resize_picture(picture, int(size), fit) for picture in opened]
        except PictureError as error:
            sys.stdout.buffer.write(json.dumps(str(error) or "unknown error").encode() + b"\n")
        else:
            sys.stdout.buffer.write(b'""\n' + np.stack(pixels).tobytes())
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
