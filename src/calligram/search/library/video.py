"""Video files: frames at regular times. Each frame is an item of a library.

OpenCV reads the frames (extra ``video``). Only files that begin like MP4, QuickTime, Matroska, WebM or AVI are given to
it, because its decoders would also read playlists, which name other files and addresses.
"""

from __future__ import annotations

import io
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

from PIL import Image

from calligram.data.pictures import PictureError
from calligram.extras import install_command, missing_modules
from calligram.picture_formats import MAX_MEGAPIXELS

MEDIA_TYPES = {
    ".mp4": "video/mp4", ".m4v": "video/mp4", ".mov": "video/quicktime", ".webm": "video/webm",
    ".mkv": "video/x-matroska", ".avi": "video/x-msvideo",
}  # fmt: skip
FRAME_SECONDS = 5.0
"""time between two frames"""
MAX_FRAMES = 500
"""of one video; a longer video has frames at larger distances"""
FRAME_JPEG_QUALITY = 92
FRAME_NAME = re.compile(r"(?P<hours>\d\d+)h(?P<minutes>[0-5]\d)m(?P<seconds>[0-5]\d)s(?P<tenths>\d)")
LOG_VARIABLE = "OPENCV_FFMPEG_LOGLEVEL"
"""environment variable with the log level of OpenCV's decoders"""

_last = threading.local()  # the video that a thread has open: frames of one video are read one after the other


def is_video(file: str | PurePath) -> bool:
    """Whether a file name has the suffix of a video."""
    return PurePath(file).suffix.lower() in MEDIA_TYPES


def media_type(file: PurePath) -> str:
    """The media type of a video, by its suffix."""
    return MEDIA_TYPES[file.suffix.lower()]


def reader_problem() -> str | None:
    """Why videos cannot be read; None if they can."""
    return "videos need OpenCV; install it with: " + install_command("video") if missing_modules("cv2") else None


def frame_key(file: str, seconds: float) -> str:
    """The key of a frame: the video is like a folder of its frames.

    >>> frame_key("trip/a.mp4", 3725.5)
    'trip/a.mp4/01h02m05s5'
    """
    tenths = round(10 * seconds)
    minutes, hours = tenths // 600, tenths // 36_000
    return f"{file}/{hours:02d}h{minutes % 60:02d}m{tenths // 10 % 60:02d}s{tenths % 10}"


def frame_time(file: str | None, name: str) -> float | None:
    """The second of the frame with this name or key; None if its file is no video.

    >>> frame_time("trip/a.mp4", "trip/a.mp4/01h02m05s5")
    3725.5
    """
    found = FRAME_NAME.fullmatch(name.rpartition("/")[2]) if file is not None and is_video(file) else None
    if found is None:
        return None
    hours, minutes, seconds, tenths = (int(part) for part in found.groups())
    return 3600 * hours + 60 * minutes + seconds + tenths / 10


def frame_times(file: Path) -> list[float]:
    """The seconds of the frames that are taken of a video: from 0 on, at equal distances.

    Raises:
        PictureError: when the file is not a video that can be read.
    """
    with _opened(file) as capture:
        seconds = _duration(capture)
    step = max(FRAME_SECONDS, seconds / MAX_FRAMES)
    count = min(MAX_FRAMES, max(1, int(seconds / step + 0.999)))
    return [round(number * step, 1) for number in range(count)]


def read_frame(file: Path, seconds: float) -> bytes:
    """The frame that is shown at this time, as a JPEG; of a video that is shorter, its last frame.

    Raises:
        PictureError: when it cannot be read.
    """
    with _opened(file) as capture:
        return _frame(capture, seconds)


def read_next_frame(file: Path, seconds: float) -> bytes:
    """As ``read_frame``; the video stays open in this thread until another one is read."""
    about = file.stat() if file.exists() else None
    key = None if about is None else (str(file), about.st_size, about.st_mtime_ns)
    if key is None or getattr(_last, "key", None) != key:
        close_video()
        _last.capture, _last.key = _open(file), key
    try:
        return _frame(_last.capture, seconds)
    except PictureError:
        close_video()
        raise


def close_video() -> None:
    """Close the video that this thread has open."""
    if getattr(_last, "key", None) is not None:
        _last.capture.release()
    _last.key = _last.capture = None


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    capture = _open(file)
    try:
        yield capture
    finally:
        capture.release()


def _open(file: Path) -> Any:
    """Open a video with OpenCV."""
    if (problem := reader_problem()) is not None:
        raise PictureError(problem)
    try:
        with file.open("rb") as stream:
            start = stream.read(12)
    except OSError as error:
        raise PictureError(str(error.strerror)) from error
    is_known = start[4:8] == b"ftyp" or start.startswith(b"\x1a\x45\xdf\xa3") or start[:4] + start[8:] == b"RIFFAVI "
    if not is_known:
        raise PictureError("it does not begin like a video (MP4, QuickTime, Matroska, WebM or AVI)")
    os.environ.setdefault(LOG_VARIABLE, "-8")  # a damaged file is reported here, not on the terminal
    import cv2

    capture = cv2.VideoCapture(os.fspath(file), cv2.CAP_FFMPEG)
    if not capture.isOpened():
        raise PictureError("it is damaged, or has a format that OpenCV cannot decode")
    pixels = capture.get(cv2.CAP_PROP_FRAME_WIDTH) * capture.get(cv2.CAP_PROP_FRAME_HEIGHT)
    if not 0 < pixels <= MAX_MEGAPIXELS * 1e6:
        capture.release()
        raise PictureError(
            f"its frames have {pixels / 1e6:g} megapixels; more than 0 and at most {MAX_MEGAPIXELS} are read"
        )
    return capture


def _duration(capture: Any) -> float:
    import cv2

    rate, frames = capture.get(cv2.CAP_PROP_FPS), capture.get(cv2.CAP_PROP_FRAME_COUNT)
    if not (0 < rate < 1e6 and 0 < frames < 1e9):
        raise PictureError("its length is not known; convert it to MP4")
    return float(frames / rate)


def _frame(capture: Any, seconds: float) -> bytes:
    """Decode the frame at a time. Its number is what OpenCV counts by; times between two frames are the earlier one."""
    import cv2

    rate, frames = capture.get(cv2.CAP_PROP_FPS), capture.get(cv2.CAP_PROP_FRAME_COUNT)
    number = min(int(seconds * rate + 1e-3), max(0, int(frames) - 1))
    if int(capture.get(cv2.CAP_PROP_POS_FRAMES)) != number:
        capture.set(cv2.CAP_PROP_POS_FRAMES, number)
    read, pixels = capture.read()
    if not read:
        raise PictureError(f"the frame at {seconds:g} s cannot be decoded")
    stream = io.BytesIO()
    Image.fromarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)).save(stream, "JPEG", quality=FRAME_JPEG_QUALITY)
    return stream.getvalue()
