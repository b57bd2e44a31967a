"""Pictures resized to squares, and many pictures decoded on many cores.

Python runs one thread of a process at a time, and a fifth of the time that a picture takes is spent in Python. So the
threads of one process use about five cores: on 16 cores they decoded 0.34 of what 16 times one core does. With three
cores or more, processes decode. One process imports what they need, without torch and Arrow, and forks the others, so
that the imports are done once. Threads decode until the processes have started. Pixels come back in shared memory.
"""

from __future__ import annotations

import json
import logging
import math
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from calligram.data.pictures import (
    Item,
    Output,
    PictureError,
    StoredPictures,
    core_share,
    decode,
    map_in_order,
    read_picture_file,
    worker_threads,
)

if TYPE_CHECKING:  # the processes that decode import none of this
    from calligram.data.pairing import Visuals

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
"""number of pictures for each process, below which threads decode: it takes half a second to start the processes"""
BLOCK_PICTURES = 8
"""pictures that a process decodes at a time"""
READY, DECODED, FAILED = b"r", b"d", b"f"
"""what a process answers: it has started; the pixels are in the shared memory; some pictures could not be decoded"""


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


def map_batches(
    pool: ThreadPoolExecutor, function: Callable[[Item], Output], items: Sequence[Item], size: int, *, ahead: bool
) -> Iterator[list[Output]]:
    """Map in threads and yield lists of ``size`` results.

    Args:
        ahead: start the next batch while the caller works on one. For callers that work on a GPU: on a CPU, torch would
            compete with the threads for the same cores.
    """
    batches = [items[start : start + size] for start in range(0, len(items), size)]
    results = map_in_order(pool, function, items, 2 * size) if ahead else None
    for batch in batches:
        yield list(pool.map(function, batch)) if results is None else [next(results) for _ in batch]


def decode_pictures(visuals: Visuals, rows: Ints, size: int, fit: Fit) -> Iterator[Pixels]:
    """Decode items of ``visuals`` on all cores of this process's share; yield each as (3, size, size), in order.

    Raises:
        PictureError: when a picture cannot be decoded.
    """
    cores = core_share()
    stored = visuals.pictures if isinstance(visuals.pictures, StoredPictures) and visuals.boxes is None else None
    many = cores >= MIN_CORES and len(rows) >= cores * MIN_PICTURES
    if stored is None or not many or not hasattr(os, "fork"):

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


def decode_batches(visuals: Visuals, size: int, fit: Fit, batch: int, *, ahead: bool) -> Iterator[Pixels]:
    """Decode all items in batches (N, 3, size, size).

    Args:
        ahead: decode the next batches while the caller works on one; see ``map_batches``.
    """
    rows = np.arange(len(visuals))
    decoded = decode_pictures(visuals, rows, size, fit) if ahead else None
    for start in range(0, len(rows), batch):
        some = rows[start : start + batch]
        found = decode_pictures(visuals, some, size, fit) if decoded is None else islice(decoded, len(some))
        yield np.stack(list(found))


@contextmanager
def _decoders(pictures: StoredPictures, count: int, size: int, fit: Fit) -> Iterator[SimpleQueue[_Decoder]]:
    """Start processes; yield a queue of the free ones."""
    every = [_Decoder(pictures, size, fit) for _ in range(count)]
    free: SimpleQueue[_Decoder] = SimpleQueue()
    for decoder in every:
        free.put(decoder)
    given = [(decoder.far.fileno(), decoder.memory) for decoder in every]
    first = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, str(size), fit, json.dumps(given)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        # What goes wrong there is met again, and reported, when this process decodes the same pictures.
        stderr=subprocess.DEVNULL,
        pass_fds=[descriptor for pair in given for descriptor in pair],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # numpy starts no threads there, which a fork would lose
    )
    assert first.stdin is not None
    try:
        for decoder in every:
            decoder.far.close()  # so that the end of a process is noticed
        yield free
    finally:
        first.stdin.close()  # at this, it ends the others
        first.wait()
        for decoder in every:
            decoder.close()


class _Decoder:
    """This side of a process that decodes pictures of a collection. One thread uses it at a time."""

    def __init__(self, pictures: StoredPictures, size: int, fit: Fit) -> None:
        self._pictures, self._size, self._fit = pictures, size, fit
        self._near, self.far = socket.socketpair()
        shape = (BLOCK_PICTURES, 3, size, size)
        self.memory = _shared_memory(math.prod(shape))
        self._pixels = np.frombuffer(mmap.mmap(self.memory, math.prod(shape)), dtype=np.uint8).reshape(shape)
        self._started = self._ended = False

    def decode(self, images: list[int]) -> Pixels:
        """Decode images of the collection; in this process if the other one has not started yet, fails, or has ended.

        Where a picture is damaged, the error is that of this process.
        """
        if not self._ended:
            try:
                if self._has_started() and self._ask(images):
                    return self._pixels[: len(images)].copy()
            except (OSError, EOFError):
                self._ended = True
                log.debug("a process that decodes pictures has ended; they are decoded here")
        opened = (self._pictures.open(image, least_side(self._size)) for image in images)
        return np.stack([resize_picture(picture, self._size, self._fit) for picture in opened])

    def _has_started(self) -> bool:
        if not self._started:
            with suppress(BlockingIOError):
                self._started = self._answer(socket.MSG_DONTWAIT) == READY
        return self._started

    def _ask(self, images: list[int]) -> bool:
        try:
            files = [self._pictures.place(image) for image in images]
        except PictureError:
            return False
        self._near.sendall(json.dumps(files).encode() + b"\n")
        return self._answer() == DECODED

    def _answer(self, flags: int = 0) -> bytes:
        answer = self._near.recv(1, flags)
        if not answer:
            raise EOFError
        return answer

    def close(self) -> None:
        """Close what belongs to the process, after its end."""
        self._near.close()
        os.close(self.memory)


def _shared_memory(size: int) -> int:
    """Return the descriptor of memory that other processes can map; it is freed when nobody has it any more."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("pictures")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def main(size: int, fit: Fit, given: Sequence[tuple[int, int]]) -> None:
    """Fork a process for each pair of descriptors: a socket and its memory. End them when standard input ends.

    Standard input ends also when the process that started this one is killed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    Image.preinit()  # imports decoders
    processes = []
    for link, memory in given:
        if not (process := os.fork()):
            for other in {descriptor for pair in given for descriptor in pair} - {link, memory}:
                with suppress(OSError):  # closed before the fork
                    os.close(other)
            _serve(socket.socket(fileno=link), memory, size, fit)
            os._exit(0)
        processes.append(process)
        os.close(link)
        os.close(memory)
    sys.stdin.buffer.read()
    for process in processes:
        os.kill(process, signal.SIGKILL)  # not yet waited for, so the number is still its own
        os.waitpid(process, 0)


def _serve(link: socket.socket, memory: int, size: int, fit: Fit) -> None:
    """Decode the pictures that come as lines of JSON into the memory, until the other side closes."""
    shape = (BLOCK_PICTURES, 3, size, size)
    pixels = np.frombuffer(mmap.mmap(memory, math.prod(shape)), dtype=np.uint8).reshape(shape)
    link.sendall(READY)
    for line in link.makefile("rb"):
        try:
            for number, (file, offset, length) in enumerate(json.loads(line)):
                picture = decode(read_picture_file(Path(file), offset, length), least_side(size))
                pixels[number] = resize_picture(picture, size, fit)
        except PictureError:
            link.sendall(FAILED)
        else:
            link.sendall(DECODED)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))  # type: ignore[arg-type]
