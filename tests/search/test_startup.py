"""The verbs of search import only what they need."""

from __future__ import annotations

import subprocess
import sys

import pytest

NOT_NEEDED = {
    "search": ("calligram.recipes", "calligram.training", "matplotlib", "pandas", "scipy", "sklearn", "transformers"),
    "index": ("calligram.recipes", "calligram.training", "matplotlib", "pandas", "sklearn", "transformers"),
}
SCRIPT = f"""
import sys
from calligram.cli.main import main
try:
    main()
finally:
    print([name for name in {NOT_NEEDED!r}[sys.argv[1]] if name in sys.modules])
"""


@pytest.mark.parametrize("verb", ["search", "index"])
def test_a_verb_imports_nothing_that_it_does_not_use(indexed, small_run, photos, tmp_path, verb):
    words = [indexed, "a red disc"] if verb == "search" else [small_run, photos, "--out", tmp_path / "new"]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, verb, *map(str, words)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr
