"""The wheel is whole: built, installed into an empty environment beside the tested packages, and run."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_wheel_holds_the_package_and_its_command_runs(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "calligram/py.typed" in names
    presets = {file.name for file in (ROOT / "src" / "calligram" / "recipes" / "presets").glob("*.toml")}
    assert presets == {Path(name).name for name in names if name.startswith("calligram/recipes/presets/")}
    assert "calligram/search/indexing/countries.txt" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "src", "results", "examples"))]
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(wheel)], check=True)
    # The dependencies are those already installed for the tests; the package itself must come from the wheel.
    site = next((folder / "lib").glob("python*/site-packages"))
    tested = [p for p in sys.path if p.endswith("site-packages")]
    (site / "tested.pth").write_text("\n".join(tested) + "\n")
    installed = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    where = subprocess.run(
        [str(python), "-c", "import calligram; print(calligram.__file__)"],
        capture_output=True, text=True, cwd=tmp_path, env=installed,
    )  # fmt: skip
    assert str(site) in where.stdout, where.stderr
    made = subprocess.run(
        [str(folder / "bin" / "calligram"), "scenes", "s", "--images", "12", "--size", "32"],
        capture_output=True, text=True, cwd=tmp_path, env=installed,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert "12 images" in made.stdout
    shown = subprocess.run(
        [str(folder / "bin" / "calligram"), "show", "aoq-paper"],
        capture_output=True, text=True, cwd=tmp_path, env=installed,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    assert "stages.2.on_start" in shown.stdout
