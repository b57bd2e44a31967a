"""Which state of the code a number comes from."""

from __future__ import annotations

import subprocess
from pathlib import Path


def commit() -> str:
    """The checked-out commit, with a mark when files differ from it; ``unknown`` outside a checkout."""
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=10"],
            cwd=here, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip()
