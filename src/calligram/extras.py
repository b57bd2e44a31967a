"""Optional packages: imported on first use, with an error that says how to install them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import Any

from calligram.errors import UserError


def install_command(extra: str) -> str:
    """The command that installs the packages of an extra.

    >>> print(install_command("search"))
    pip install "calligram[search]"
    """
    return f'pip install "calligram[{extra}]"'


def require(module: str, *, extra: str, purpose: str, package: str = "") -> Any:
    """Import a module of an optional package.

    Args:
        module: name of the module.
        extra: the extra of ``pyproject.toml`` that lists the package.
        purpose: what needs the package, for the error message.
        package: name of the package, if the module has another name.

    Raises:
        UserError: when the package, or a package that it imports, is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        missing = package or error.name or module
        raise UserError(f"{purpose} needs {missing}; install it with: {install_command(extra)}") from error


def missing_modules(*modules: str) -> list[str]:
    """Return the modules that are not installed."""
    return [module for module in modules if find_spec(module) is None]


def lancedb() -> Any:
    """Import LanceDB, the storage of a library."""
    return require("lancedb", extra="search", purpose="a library")


def opencv() -> Any:
    """Import OpenCV with its contributed modules.

    Raises:
        UserError: when OpenCV is not installed, or is the build without ``ximgproc``.
    """
    cv2 = require("cv2", extra="regions", purpose="this proposal method", package="opencv-contrib-python-headless")
    if not hasattr(cv2, "ximgproc"):
        raise UserError(
            "the installed OpenCV has no ximgproc, and two builds of OpenCV cannot be installed together; run "
            f'"pip uninstall opencv-python opencv-python-headless", then {install_command("regions")}'
        )
    return cv2


@contextmanager
def fast_imports() -> Iterator[None]:
    """Suspend garbage collection, which takes a tenth of the time of importing torch and frees nothing meanwhile.

    Objects of that time are exempt from later collections, also from the one at the end of the process. Use it only in
    a process that runs one command.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


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
