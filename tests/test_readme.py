"""The README's commands and its Python, run as they stand but smaller."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
SMALLER = "--set batch=8 --set epochs=1 --set dim=8 --set image.channels=4 --set image.size=16 --set text.hidden=8"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_commands_and_the_python_of_the_readme_run(calligram, tmp_path):
    for line in blocks("bash")[0].splitlines():
        command = line.replace("--images 2000", "--images 60 --size 32")
        words = shlex.split(command, comments=True)
        if " train " in line:
            words += shlex.split(SMALLER)
        assert words[0] == "calligram"
        done = calligram(*words[1:], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    settings = ", ".join(f'"{word}"' for word in shlex.split(SMALLER) if "=" in word and "epochs" not in word)
    script = blocks("python")[0].replace('"seed=1"', f'"seed=1", {settings}')
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"text to image R@1 \d+\.\d, rsum \d+", done.stdout)


def test_every_verb_in_the_readme_exists_and_every_verb_is_in_it():
    from calligram.cli.main import app

    verbs = {command.name for command in app.registered_commands}
    assert set(re.findall(r"calligram (\w+)", README)) >= verbs
    named = set(re.findall(r"(?:`|\n)calligram (\w+)", README))
    assert named <= verbs
