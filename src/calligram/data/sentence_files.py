"""Text files with a sentence on each line."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from calligram.errors import UserError


def read_sentences(file: Path) -> list[str]:
    """The lines of a text file, also of a compressed one that ends in .gz.

    Raises:
        UserError: for a file that cannot be read as text.
    """
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        return content.decode("utf-8").splitlines()
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UserError(f"{file} could not be read as text ({error}); give a sentence per line in UTF-8") from error
