"""How the process keeps and returns memory.

An operation on images frees tensors of many megabytes, and the next one asks for as much again. The allocator of glibc
returns memory of this size to the system at once, and the system clears every page that it hands out. On a CPU a
network can spend most of its time on that. So freed memory is kept for the next tensors.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os

log = logging.getLogger(__name__)

ALLOCATOR_VARIABLES = (
    "GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "MALLOC_ARENA_TEST", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_",
)  # fmt: skip
"""environment variables of glibc; whoever sets one has chosen"""
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -3, -4, -8
"""numbers of the options of ``mallopt`` (malloc.h)"""
MAX_KEPT_BYTES = 1 << 30
"""a block above this size is returned when it is freed: it is a matrix of scores rather than the work of a layer"""


@functools.cache
def keep_freed_memory() -> bool:
    """Keep freed memory in this process for the next tensors; return whether that was possible.

    Nothing is changed where the allocator is not that of glibc, or where the user chose its options in the environment
    (``ALLOCATOR_VARIABLES``). Numbers are the same in both cases. It has no effect on the threads that run already, so
    it is called before threads that compute are started.
    """
    if any(os.environ.get(name) for name in ALLOCATOR_VARIABLES) or (libc := _glibc()) is None:
        return False
    # An older glibc takes no threshold above 32 MB. There, blocks of every size are kept.
    kept = libc.mallopt(MMAP_THRESHOLD, MAX_KEPT_BYTES) or libc.mallopt(MMAP_MAX, 0)
    # Threads share one arena, since others return memory in pieces of 64 MB, whatever the options are.
    kept = kept and libc.mallopt(TRIM_THRESHOLD, -1) and libc.mallopt(ARENA_MAX, 1)
    log.debug("freed memory is %s", "kept for the next tensors" if kept else "returned to the system")
    return bool(kept)


def return_freed_memory() -> None:
    """Return memory that is free now to the system; after work whose memory is not needed soon."""
    if (libc := _glibc()) is not None:
        libc.malloc_trim(0)


@functools.cache
def _glibc() -> ctypes.CDLL | None:
    """The C library with the functions of glibc; None with another one."""
    try:
        libc = ctypes.CDLL(None)
        _ = libc.mallopt, libc.malloc_trim
    except (OSError, TypeError, AttributeError):  # Windows has no library of this kind, musl and macOS other functions
        return None
    return libc
