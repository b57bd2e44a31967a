from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import calligram

CORE = {
    "filelock", "matplotlib", "numpy", "PIL", "pyarrow", "rich", "safetensors", "scipy", "sklearn", "torch",
    "transformers", "typer", "calligram",
}  # fmt: skip


def test_every_module_imports():
    for module in pkgutil.walk_packages(calligram.__path__, "calligram."):
        importlib.import_module(module.name)


def test_training_and_evaluation_import_nothing_of_ours_outside_the_core(tmp_path):
    """Block every top-level package that is not the core's, its own dependencies or the standard library's."""
    script = """
import sys
blocked = {"tensorboard", "lancedb", "fastapi", "uvicorn", "cv2", "gensim", "nltk", "onnx", "onnxruntime", "ray"}
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ImportError(name + " is not part of the core")
sys.meta_path.insert(0, Block())
import calligram.cli.train, calligram.cli.evaluate
import calligram.recipes.catalog, calligram.recipes.parts.run, calligram.training.loop, calligram.evaluation.figures
from calligram.training.curves import TensorBoardWriter
from pathlib import Path
TensorBoardWriter(Path(".")).add(0, {"x": 1.0})
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == "fine", done.stderr


def test_declared_dependencies_are_the_core():
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    names = {
        line.split(">")[0].replace("scikit-learn", "sklearn").replace("pillow", "PIL")
        for line in project["dependencies"]
    }
    assert names | {"calligram"} == CORE


def test_help_is_quick_because_it_imports_nothing_heavy():
    script = (
        "import sys, calligram.cli.main; print([m for m in ('torch', 'transformers', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
