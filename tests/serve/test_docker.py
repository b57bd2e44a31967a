"""The steps of the Dockerfile, without Docker: its files build the package, its commands are those of the server."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from inspect import signature
from pathlib import Path

import pytest

from calligram import __version__
from calligram.cli.serve import serve

ROOT = Path(__file__).parents[2]
LINES = [line.split(" ", 1) for line in (ROOT / "Dockerfile").read_text().splitlines() if line and line[0] != "#"]
STEPS = [(name, rest) for name, rest in LINES]


def steps(wanted: str) -> list[str]:
    return [rest for name, rest in STEPS if name == wanted]


@pytest.fixture(scope="module")
def copied(tmp_path_factory) -> Path:
    """What the image has after its COPY steps: only files that .dockerignore lets through."""
    folder = tmp_path_factory.mktemp("app")
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for step in steps("COPY"):
        *sources, target = step.split()
        for source in sources:
            assert source in allowed, f"{source} is kept out by .dockerignore"
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, folder / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, folder / target)
    return folder


def test_the_copied_files_are_enough_to_install_the_package(copied, tmp_path):
    """Dependencies are in this environment already: the step installs the package alone."""
    packages = [word for step in steps("RUN") for word in shlex.split(step) if word.startswith(".[")]
    assert len(packages) == 1
    project = tomllib.loads((copied / "pyproject.toml").read_text())["project"]
    extras = re.findall(r"\w+", packages[0].partition("[")[2])
    assert set(extras) <= set(project["optional-dependencies"])
    alone = ["--no-deps", "--no-build-isolation", "--quiet", "--no-compile", "--target", tmp_path / "installed", "."]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *map(str, alone)], cwd=copied, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    plain = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    entry = json.loads(steps("ENTRYPOINT")[0])
    assert project["scripts"][entry[0]] == "calligram.cli.main:main"
    shown = subprocess.run([sys.executable, "-m", *entry, "--version"], cwd=tmp_path, env=plain, capture_output=True)
    assert shown.stdout.decode().strip() == __version__
    helped = subprocess.run(
        [sys.executable, "-m", *entry, *json.loads(steps("CMD")[0])], cwd=tmp_path, env=plain, capture_output=True
    )
    assert b"serve" in helped.stdout


def test_every_pin_is_copied_before_it_is_used():
    names = [name for name, _ in STEPS]
    first_install = next(place for place, (name, rest) in enumerate(STEPS) if name == "RUN" and "pip install" in rest)
    assert any("constraints.txt" in rest for name, rest in STEPS[:first_install] if name == "COPY")
    assert all("-c constraints.txt" in rest for rest in steps("RUN") if "pip install" in rest)
    user = names.index("USER")
    assert steps("USER") != ["root"]
    assert f"useradd --create-home {steps('USER')[0]}" in [rest for name, rest in STEPS[:user] if name == "RUN"]


def test_the_health_check_and_the_port_are_those_of_the_server(served):
    assert steps("EXPOSE") == [str(signature(serve).parameters["port"].default)]
    words = json.loads(steps("HEALTHCHECK")[0].removeprefix("CMD "))
    assert f"127.0.0.1:{steps('EXPOSE')[0]}/" in words[2]
    plain = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}

    def check(address: str) -> int:
        code = words[2].replace(f"http://127.0.0.1:{steps('EXPOSE')[0]}", address)
        return subprocess.run([sys.executable, *words[1:2], code], env=plain, capture_output=True).returncode

    assert check(served.url) == 0
    assert check("http://127.0.0.1:9") != 0
