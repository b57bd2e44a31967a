"""A quick part of the trials in this folder. The whole: ``make hostile`` and ``make soak``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import flips  # noqa: E402
import inputs  # noqa: E402


@pytest.fixture(scope="module")
def pristine(made_once):
    return made_once("hostile", flips.make)


def test_damaged_files_are_no_answers_and_no_tracebacks(pristine, tmp_path):
    (tmp_path / "pristine").symlink_to(pristine)
    found = list(flips.trials(tmp_path, 40, seed=1))
    assert [trial for trial in found if trial[2] not in ("harmless", "noticed")] == []
    assert sum(outcome == "noticed" for _, _, outcome in found) >= 20


def test_malformed_inputs_end_with_an_answer_or_one_line(pristine, tmp_path):
    shutil.copytree(pristine, tmp_path / "work")
    found = list(inputs.all_cases(tmp_path / "work", seed=1, share=0.03))
    wrong = [(case.what, case.ending.code, case.problem) for case in found if case.problem or not case.ending.is_fine]
    assert wrong == []
    assert sum(case.count for case in found) >= 120


def test_a_round_of_kills_leaves_what_the_model_says():
    done = subprocess.run([sys.executable, HERE / "soak.py", "1", "3"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 differences" in done.stdout


def test_verbs_end_with_one_line_on_a_machine_that_fails():
    """Full and read-only disks, wrong permissions and wrong dates for some verbs."""
    words = ("9", "3", "full disk", "wrong dates", "import --overwrite", "caption", "copy", "index")
    if os.getuid() == 0:
        words = (*words, "permissions")
    done = subprocess.run([sys.executable, HERE / "machine.py", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 trials, 0 failures" in done.stdout
