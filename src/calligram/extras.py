"""Optional packages: imported when first needed, with an error that says how to install them."""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec
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


def import_lancedb_for_command() -> None:
    """Import lancedb without pandas and without the client of remote servers, in 40% of the time.

    pyarrow imports pandas where it is installed, and lancedb imports a client for REST servers; a library on disk needs
    neither. Afterwards pyarrow converts nothing to pandas in this process. Call it therefore only in a process that
    runs one command, never from code that others import.
    """
    if "lancedb" in sys.modules or "pandas" in sys.modules or find_spec("lancedb") is None:
        return
    hidden = _HiddenPackage("pandas")
    sys.meta_path.insert(0, hidden)
    try:
        import pyarrow.dataset  # noqa: F401
    finally:
        sys.meta_path.remove(hidden)
    client = find_spec("lance_namespace_urllib3_client")
    if client is not None:
        sys.modules[client.name] = module_from_spec(client)  # its modules can be imported; its __init__ does not run
    try:
        import lancedb  # noqa: F401
    except (ImportError, AttributeError):  # a version that needs the client
        for name in [name for name in sys.modules if name.partition(".")[0] in ("lancedb", *_LANCE_NAMESPACE)]:
            del sys.modules[name]


_LANCE_NAMESPACE = ("lance_namespace", "lance_namespace_urllib3_client")


class _HiddenPackage:
    """Raises ImportError for one package while it is in ``sys.meta_path``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == self.name:
            raise ImportError(f"{name} is not imported in this process")
