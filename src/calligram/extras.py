"""Optional packages: imported on first use, with an error that says how to install them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from calligram.errors import UserError, is_memory_error


def install_command(extra: str) -> str:
    """The command that installs the packages of an extra; in a clone, from its folder.

    >>> print(install_command("search").partition(" install ")[2].rpartition("[")[2])
    search]"
    """
    clone = clone_folder()
    return f'{_pip()} install "calligram[{extra}]"' if clone is None else f'{_pip()} install -e "{clone}[{extra}]"'


def _pip() -> str:
    """The command of pip for this Python: ``pip``, unless the shell would find that of another one."""
    found = shutil.which("pip")
    own = found is not None and Path(found).parent.resolve() == Path(sys.executable).parent.resolve()
    return "pip" if own else f"{shlex.quote(sys.executable or 'python')} -m pip"


def clone_folder() -> str | None:
    """The folder of the source code that this package runs or was installed from; None for an installed release."""
    source = Path(__file__).resolve().parents[2]
    if not (source / "pyproject.toml").is_file():
        try:
            address = urlsplit(
                json.loads(metadata.distribution("calligram").read_text("direct_url.json") or "{}")["url"]
            )
        except (metadata.PackageNotFoundError, ValueError, KeyError):
            return None
        source = Path(unquote(address.path))
        if address.scheme != "file" or not (source / "pyproject.toml").is_file():
            return None
    return "." if source == Path.cwd() else os.fspath(source)


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
        if is_memory_error(error):
            raise
        missing = package or error.name or module
        raise UserError(f"{purpose} needs {missing}; install it with: {install_command(extra)}") from error


def missing_modules(*modules: str) -> list[str]:
    """Return the modules that are not installed."""
    return [module for module in modules if find_spec(module) is None]


def opencv() -> Any:
    """Import OpenCV with its contributed modules.

    Only the functions that proposals need are checked. Several builds of OpenCV may be installed as long as the one
    that Python imports has them.

    Raises:
        UserError: when OpenCV is not installed, or is a build without EdgeBoxes and selective search.
    """
    cv2 = require("cv2", extra="regions", purpose="this proposal method", package="opencv-contrib-python-headless")
    contributed = getattr(cv2, "ximgproc", None)
    if not hasattr(contributed, "createEdgeBoxes") or not hasattr(contributed, "segmentation"):
        raise UserError(
            "the installed OpenCV has no EdgeBoxes and no selective search (cv2.ximgproc); install the build that has "
            f"them: {_pip()} install --force-reinstall --no-deps opencv-contrib-python-headless. If you "
            "cannot, find the boxes on another machine: docs/training.md, section Regions and phrases"
        )
    cv2.setNumThreads(1)  # proposal methods are called from several threads, one for each core
    return cv2
