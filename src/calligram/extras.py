"""Optional packages: imported when first needed, with an error that says how to install them."""

from __future__ import annotations

from typing import Any

from calligram.errors import UserError

INSTALL = 'install it with "pip install calligram[regions]"'


def opencv() -> Any:
    """``cv2`` with its contributed modules.

    Raises:
        UserError: when OpenCV is missing, or is the build without ``ximgproc``.
    """
    try:
        import cv2
    except ImportError as error:
        raise UserError(f"these proposals need opencv-contrib-python-headless; {INSTALL}") from error
    if not hasattr(cv2, "ximgproc"):
        raise UserError(
            "the OpenCV installed here has no ximgproc, and two builds cannot live beside each other: "
            'run "pip uninstall opencv-python opencv-python-headless" and "pip install calligram[regions]"'
        )
    return cv2


def onnxruntime() -> Any:
    """``onnxruntime``.

    Raises:
        UserError: when it is missing.
    """
    try:
        import onnxruntime as found
    except ImportError as error:
        raise UserError(f"detectors in .onnx files need onnxruntime; {INSTALL}") from error
    return found


def lancedb() -> Any:
    """The engine.

    Raises:
        UserError: when it is not installed.
    """
    try:
        import lancedb as found
    except ImportError as error:
        raise UserError('libraries need lancedb; install it with "pip install calligram[search]"') from error
    return found
