"""Files on disk: reading regular files only, atomic replacement, locks between processes, and content hashes.

Fsync policy: the content of a file is on the disk before the file takes its final name, and so is the name before the
function returns. A loss of power leaves the old file or the new one, whole. ``move_folder`` and ``replace_folder`` only
rename: the caller calls ``sync_file`` for files in the folder that cannot be made again.

A folder is replaced from a ``scratch_folder`` next to it. A process that is killed leaves its scratch folder behind;
``remove_leftovers`` removes it, and finishes a replacement that was begun.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import hashlib
import json
import logging
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from calligram.checksums import LIST_FILE, folder_list, is_listed, sealed, with_record
from calligram.errors import UserError, disk_error_number
from calligram.text import printable

if TYPE_CHECKING:
    from filelock import BaseFileLock

log = logging.getLogger(__name__)

LOCK_FILE = ".lock"
LOCK_POLL_SECONDS = 0.01
NEW_FOLDER = "new"
"""name of the replacement in a scratch folder"""
_OLD_FOLDER, _JOURNAL = "old", "replacing"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
"""constants of Linux: paths are relative to the working directory; exchange two names"""
_NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM)
"""errors of a system or a file system that cannot exchange names"""
OTHER_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip
READ_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def other_kind(mode: int) -> str | None:
    """What a file is that is not a regular file, for messages; None for a regular file."""
    found = None if stat.S_ISREG(mode) else OTHER_KINDS.get(stat.S_IFMT(mode), "of another kind")
    return f"{found}, not a regular file" if found else None


def open_regular(file: Path) -> int:
    """Open a regular file for reading; returns its descriptor.

    Nothing else is opened: a pipe or a device may never answer, and opening a device may have effects. If the file is
    replaced after it was checked, the system does not wait for an answer, and the descriptor is checked again.

    Raises:
        OSError: when the file cannot be opened or is not a regular file.
    """
    _refuse_other_kind(os.stat(file), file)
    descriptor = os.open(file, READ_FLAGS)
    try:
        _refuse_other_kind(os.fstat(descriptor), file)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(file: Path, most: int, offset: int = -1, size: int = 0) -> bytes:
    """The bytes of a regular file, or ``size`` bytes of it from ``offset`` on.

    Args:
        file: of any size.
        most: number of bytes that is accepted; larger files are refused before they are read.
        offset: -1 for the whole file.
        size: only with an offset.

    Raises:
        OSError: when it cannot be read, is not a regular file, or is too large.
    """
    descriptor = open_regular(file)
    with os.fdopen(descriptor, "rb") as stream:
        wanted = os.fstat(descriptor).st_size if offset < 0 else size
        if wanted > most:
            accepted = f"{wanted / 1e9:.1f} GB; at most {most / 1e9:g} GB are accepted"
            raise OSError(errno.EFBIG, f"the file is too large: {accepted}", str(file))
        stream.seek(max(0, offset))
        return stream.read(wanted)


def refuse_other_encoding(path: Path) -> None:
    """Raise a ``UserError`` for a path that is not UTF-8, because tables cannot store it."""
    shown = printable(str(path.resolve()))
    if shown != str(path.resolve()):
        raise UserError(f"the path {shown} is not valid UTF-8; rename it")


def _refuse_other_kind(about: os.stat_result, file: Path) -> None:
    if kind := other_kind(about.st_mode):
        raise OSError(errno.EINVAL, kind, str(file))


@contextlib.contextmanager
def replace_file(file: Path, *, keep_suffix: bool = False) -> Iterator[Path]:
    """Replace a file atomically: the block writes to the path that it gets, which then takes the name of ``file``.

    Readers see the old content or the new content. When the block raises, ``file`` stays as it was. A process that is
    killed leaves at most ``.NAME.partial``, which the next writer of the same file overwrites. With ``keep_suffix``,
    the path has the suffix of the file, from which writers of pictures take their format.
    """
    partial = file.with_name(f".{file.stem}.partial{file.suffix}" if keep_suffix else f".{file.name}.partial")
    try:
        with named_disk_errors(file):
            yield partial
            sync_file(partial)
            if is_listed(file.name):
                replace_json(file.with_name(LIST_FILE), with_record(file, partial))
            move_file(partial, file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def replace_text(file: Path, text: str) -> None:
    """Replace a text file atomically, in UTF-8 and with line ends as they are in ``text``."""
    with replace_file(file) as partial:
        partial.write_bytes(text.encode("utf-8"))


def replace_json(file: Path, content: object, *, indent: int | None = None) -> None:
    """Replace a JSON file atomically; an object gets its checksum as a further entry, see ``checksums``."""
    content = sealed(content) if isinstance(content, dict) else content
    text = json.dumps(content, indent=indent, ensure_ascii=False) + "\n"
    replace_text(file, printable(text))  # half characters, as in paths that are not UTF-8, become escapes of JSON


def move_file(source: Path, target: Path) -> None:
    """Rename a file within a file system, over the target where there is one; its content must be on the disk."""
    os.replace(source, target)
    sync_folder(target.parent)


def move_folder(source: Path, target: Path) -> None:
    """Give a finished folder its final name, within a file system; the target does not exist or is empty.

    The files in it are not forced onto the disk: there may be many thousands, and some may be links to other files.
    """
    source.rename(target)


@contextlib.contextmanager
def named_disk_errors(path: Path) -> Iterator[None]:
    """Raise errors of a disk as ``OSError`` with the path that is written, whichever library raises them."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        number = disk_error_number(error)
        if number is None or (isinstance(error, OSError) and error.filename):
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def check_space(folder: Path, needed: int) -> None:
    """Raise the error of a full disk, with both numbers, when ``needed`` bytes are more than the disk has free."""
    total, _, free = shutil.disk_usage(folder)
    if total and needed > free:  # some network disks tell no size
        text = f"{os.strerror(errno.ENOSPC)}: {needed:,} bytes needed, {free:,} bytes free"
        raise OSError(errno.ENOSPC, text, str(folder))


def reserve_space(descriptor: int, size: int) -> None:
    """Reserve a file's space on the disk: the system ends a process that writes to a mapped file without space."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)


@contextlib.contextmanager
def scratch_folder(target: Path) -> Iterator[Path]:
    """Make a folder next to ``target`` for everything that is written before ``target`` changes, and remove it after.

    It is locked as long as its process lives. Scratch folders that killed processes left are removed first.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_scratch_prefix(target), dir=target.parent))
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as stack:
            if not stack.enter_context(try_lock(folder / LOCK_FILE)):
                continue  # another process has taken the folder for a leftover, before it was locked
            locked = stack.pop_all()
            break
    with locked:
        try:
            with named_disk_errors(target):
                yield folder
        finally:
            _remove_scratch(folder, target)


def replace_folder(scratch: Path, target: Path, *, keep: Path | None = None, listed: bool = True) -> None:
    """Give the folder ``new`` of a scratch folder the name ``target``; an old ``target`` is removed with the scratch.

    Where the system can exchange two names, there is no moment without ``target``. Elsewhere the old folder is renamed
    first, and a journal says that the replacement is whole: ``remove_leftovers`` finishes it after a kill.

    Args:
        keep: name for the old folder, which then stays. It is renamed first, on all systems.
        listed: write the checksums of all files into the folder; False for a folder with a manifest.
    """
    new = scratch / NEW_FOLDER
    if listed:
        replace_json(new / LIST_FILE, folder_list(new))
    if not target.exists():
        move_folder(new, target)
    elif keep is not None or not exchange_names(new, target):
        old = keep or scratch / _OLD_FOLDER
        replace_text(scratch / _JOURNAL, "")
        move_folder(target, old)
        try:
            move_folder(new, target)
        except BaseException:
            move_folder(old, target)
            raise
    sync_folder(target.parent)


def exchange_names(first: Path, second: Path) -> bool:
    """Exchange the names of two files or folders in one step; False where the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(second))


def remove_leftovers(target: Path) -> None:
    """Remove the scratch folders of ``target`` that killed processes left; finish a replacement that was begun."""
    for scratch in target.parent.glob(glob.escape(_scratch_prefix(target)) + "*"):
        # Without ``target``, a process is between its two renames, or was killed there.
        lock = wait_for_lock if (scratch / _JOURNAL).exists() and not target.exists() else try_lock
        with contextlib.suppress(OSError), lock(scratch / LOCK_FILE) as locked:
            if locked is not False:
                _remove_scratch(scratch, target)


def _scratch_prefix(target: Path) -> str:
    return f".{target.name}.writing-"


def _remove_scratch(scratch: Path, target: Path) -> None:
    """Remove a scratch folder; first finish a replacement that was killed between its two renames."""
    if (scratch / _JOURNAL).exists() and (scratch / NEW_FOLDER).exists() and not target.exists():
        move_folder(scratch / NEW_FOLDER, target)
        log.info("%s: finished a replacement that was interrupted", target)
    shutil.rmtree(scratch, ignore_errors=True)


def sync_file(file: Path) -> None:
    """Wait until a file's content is on the disk."""
    with file.open("rb+") as stream:
        os.fsync(stream.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names of a folder's files are on the disk, on systems where a folder can be opened."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Wait until all files under a folder are on the disk."""
    for path in (*folder.rglob("*"), folder):
        sync_folder(path) if path.is_dir() else sync_file(path)


@contextlib.contextmanager
def lock_folder(folder: Path, kind: str) -> Iterator[None]:
    """Lock a folder for one writer; the system releases the lock when the process ends, in whatever way.

    Args:
        folder: created if it does not exist.
        kind: what the folder is, for the error message.

    Raises:
        UserError: when another process holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with try_lock(folder / LOCK_FILE) as locked:
        if not locked:
            holder = lock_holder(folder / LOCK_FILE)
            raise UserError(f"{kind} {folder} is being written to by {holder}; wait until it is done")
        with named_disk_errors(folder):
            yield


@contextlib.contextmanager
def try_lock(file: Path) -> Iterator[bool]:
    """Lock a file if no other process holds it; the block gets whether that succeeded."""
    lock = _acquire(file)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()


@contextlib.contextmanager
def wait_for_lock(file: Path) -> Iterator[None]:
    """Lock a file, after waiting for the process that holds it."""
    while (lock := _acquire(file)) is None:
        time.sleep(LOCK_POLL_SECONDS)
    try:
        yield
    finally:
        lock.release()


def lock_holder(file: Path) -> str:
    """The process that holds a lock, for error messages."""
    with contextlib.suppress(OSError):
        if text := file.read_text(encoding="utf-8").strip():
            return text
    return "another process"


def _acquire(file: Path) -> BaseFileLock | None:
    """Lock the file, or return None when another process holds it.

    The folder of the file may be replaced by another folder meanwhile, with another lock file of the same name. So the
    lock counts only if the name stood for the same file before and after.
    """
    import filelock  # takes a tenth of a second

    while True:
        lock = filelock.FileLock(file)
        file.touch()
        before = file.stat()
        try:
            lock.acquire(blocking=False)
        except filelock.Timeout:
            return None
        try:
            if os.path.samestat(before, file.stat()):
                with contextlib.suppress(OSError):  # the name of the holder is for messages; a full disk has no room
                    file.write_text(f"process {os.getpid()} on {socket.gethostname()}\n", encoding="utf-8")
                return lock
        except FileNotFoundError:  # the folder has been renamed
            pass
        except BaseException:
            lock.release()
            raise
        lock.release()


def content_hash(data: bytes | memoryview, size: int) -> str:
    """BLAKE2b of ``data`` with a digest of ``size`` bytes, in hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=size).hexdigest()


def text_hash(text: str, size: int) -> str:
    """``content_hash`` of a text in UTF-8."""
    return content_hash(text.encode("utf-8", "replace"), size)


def parts_hash(parts: Iterable[bytes], size: int) -> str:
    """``content_hash`` of all parts joined, without joining them in memory."""
    digest = hashlib.blake2b(digest_size=size)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
