"""The worker over a Ray cluster, a small one on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from calligram.errors import UserError
from calligram.extras import install_command
from calligram.search.indexing.ray import stage_over_ray
from calligram.search.indexing.run import index_source
from calligram.search.library.library import Library
from calligram.search.library.matchers import LibraryMatchers

SCRIPT = """
import sys
from pathlib import Path
from calligram.search.library.matchers import LibraryMatchers
from calligram.search.indexing.ray import stage_over_ray
run, photos, out = map(Path, sys.argv[1:])
print(stage_over_ray("local", LibraryMatchers.load(run), photos, out, device="cpu"))
"""


@pytest.mark.slow
def test_ray_encodes_shards_that_an_indexing_run_adds(small_run, photos, tmp_path, monkeypatch):
    # Ray keeps a token in the home directory; this one is the test's own. It has two workers however many cores there
    # are, and lets them use the memory of a machine that other programs have almost filled.
    alone = {
        "HOME": str(tmp_path / "home"),
        "RAY_OVERRIDE_RESOURCES": '{"CPU": 2}',
        "RAY_memory_monitor_refresh_ms": "0",
    }
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, small_run, photos, tmp_path / "spread"],
            capture_output=True, text=True, env={**os.environ, **alone}, timeout=600,
        )  # fmt: skip
        if "timed out during startup" not in done.stderr:  # Ray gives itself 30 s, which a busy machine may not have
            break
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "12"
    models = LibraryMatchers.load(small_run)

    def never(*_, **__):
        raise AssertionError("encoded again")

    index_source(models, photos, tmp_path / "alone")
    monkeypatch.setattr("calligram.search.indexing.run.PictureEncoder.of", never)
    assert index_source(models, photos, tmp_path / "spread").counts["added"] == 12
    assert vectors(tmp_path / "spread") == vectors(tmp_path / "alone")


def vectors(folder: Path) -> dict[str, list[float]]:
    library = Library.open(folder)
    ids = library.sample(100)
    return dict(zip(ids, library.images.vectors(ids).tolist(), strict=True))


def test_without_ray_the_extra_is_named(small_run, photos, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=re.escape(install_command("ray"))):
        stage_over_ray("local", LibraryMatchers.load(small_run), photos, tmp_path / "library")
