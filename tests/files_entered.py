"""Count the files of the package in which a function runs while a piece of work runs.

A reader who follows the work through the code must open these files. Module bodies, class bodies and functions that
run during an import do not count. Run it in a process of its own:

    python tests/files_entered.py train vse COLLECTION --out RUN    # any verb of the command line
    python tests/files_entered.py request LIBRARY QUERY             # one /api/search request to a running server

Several pieces of work are separated by "--". The last line of the output is a JSON list with one entry for each: the
files entered during that work, and the modules of the package that were imported by its end.
"""

from __future__ import annotations

import inspect
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = Path(find_spec("calligram").origin).parent


class FilesEntered:
    """Records files while ``recording``, in all threads that Python starts after ``install``."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self._recording = False
        self._other: set[str] = set()

    def install(self) -> None:
        """Watch this thread and all threads that start from now on."""
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the files that are entered within the block."""
        self.files, self._recording = set(), True
        try:
            yield
        finally:
            self._recording = False

    def _on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self._recording or event != "call":
            return
        name = frame.f_code.co_filename
        if name in self.files or name in self._other:
            return
        if not name.startswith(f"{PACKAGE}/"):
            self._other.add(name)
        elif frame.f_code.co_flags & inspect.CO_OPTIMIZED and not _during_import(frame):
            self.files.add(name)

    def report(self) -> dict[str, list[str]]:
        """The files entered, relative to the package, and the modules imported by now."""
        modules = [name for name in sys.modules if name.partition(".")[0] == "calligram"]
        return {
            "entered": sorted(str(Path(name).relative_to(PACKAGE)) for name in self.files),
            "imported": sorted(modules),
        }


def _during_import(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def run_verb(entered: FilesEntered, arguments: list[str]) -> None:
    """Run a verb of the command line."""
    sys.argv = ["calligram", *arguments]
    with entered.recording():
        from calligram.cli.main import main

        try:
            main()
        except SystemExit as left:
            if left.code:
                raise


def send_request(entered: FilesEntered, library: str, query: str) -> None:
    """Send one search to a server that has answered another search before."""
    from fastapi.testclient import TestClient

    from calligram.search.query.searcher import Searcher
    from calligram.serve.server import create_app

    with TestClient(create_app(Searcher.open(Path(library))), base_url="http://localhost") as client:
        client.get("/api/search", params={"q": "snow"}).raise_for_status()
        with entered.recording():
            client.get("/api/search", params={"q": query}).raise_for_status()


def main() -> None:
    """Do the work of the command line, piece by piece, and print the report."""
    entered, reports = FilesEntered(), []
    entered.install()
    for marked, words in groupby(sys.argv[1:], lambda word: word == "--"):
        if not marked:
            verb, *arguments = words
            if verb == "request":
                send_request(entered, *arguments)
            else:
                run_verb(entered, [verb, *arguments])
            reports.append(entered.report())
    print(json.dumps(reports))


if __name__ == "__main__":
    main()
