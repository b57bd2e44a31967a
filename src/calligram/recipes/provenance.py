"""Which state of the code, and which files beside it, a number comes from."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from calligram.errors import UserError

ASSETS = "CALLIGRAM_ASSETS"
"""The one environment variable: a folder with ``flickr8k/``, ``models/`` and ``text/``."""
COMMIT = Path(__file__).parent.parent / "COMMIT"
"""names the commit where the code was copied without its history"""


def commit() -> str:
    """What the file ``COMMIT`` says, else the checked-out commit, with a mark when files differ from it."""
    if COMMIT.is_file():
        return COMMIT.read_text(encoding="utf-8").strip()
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=10"],
            cwd=COMMIT.parent, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip()


def with_assets_named(text: str) -> str:
    """Paths of assets written with their variable, so that a recorded line holds on any machine."""
    assets = os.environ.get(ASSETS)
    return text.replace(str(Path(assets).resolve()), f"${ASSETS}").replace(assets, f"${ASSETS}") if assets else text


def with_assets_found(text: str) -> str:
    """The reverse: the variable replaced by where the assets are."""
    if f"${ASSETS}" not in text:
        return text
    if ASSETS not in os.environ:
        raise UserError(f"'{text}' needs {ASSETS}: set it to a folder with flickr8k/, models/ and text/")
    return text.replace(f"${ASSETS}", os.environ[ASSETS])
