from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import calligram

CORE = {
    "filelock", "matplotlib", "numpy", "PIL", "pyarrow", "rich", "safetensors", "scipy", "sklearn", "torch",
    "transformers", "typer", "calligram",
}  # fmt: skip


KERNELS = {f"calligram.models.layers.fused_{name}" for name in ("attention", "gru", "pair_attention", "unit")}
"""modules that need Triton, which comes with torch for CUDA; others import them on use"""


def test_every_module_imports():
    without_triton = importlib.util.find_spec("triton") is None
    for module in pkgutil.walk_packages(calligram.__path__, "calligram."):
        if not (without_triton and module.name in KERNELS):
            importlib.import_module(module.name)


def test_every_package_exports_public_names_that_exist():
    packages = [m.name for m in pkgutil.walk_packages(calligram.__path__, "calligram.") if m.ispkg]
    exported = {name: dir(importlib.import_module(name)) for name in ("calligram", *packages)}
    assert {name for name in exported if "__file__" in exported[name]} == {"calligram.cli", "calligram.serve.routes"}
    for package, names in exported.items():
        for name in names:
            assert getattr(importlib.import_module(package), name) is not None


def test_exported_names_are_imported_on_use():
    script = """
import sys, calligram as cg
assert "numpy" not in sys.modules and "torch" not in sys.modules
assert cg.train is cg.train_preset and callable(cg.evaluate) and callable(cg.load)
assert callable(cg.losses.ranking_loss) and "calligram.losses.neighbourhood" not in sys.modules
try:
    cg.losses.nonsense
except AttributeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "module 'calligram.losses' has no attribute 'nonsense'", done.stderr


def test_training_and_evaluation_import_nothing_of_ours_outside_the_core(tmp_path, tiny):
    """Block every top-level package that is not the core's, its own dependencies or the standard library's."""
    script = """
import sys
blocked = {"tensorboard", "lancedb", "fastapi", "uvicorn", "cv2", "gensim", "nltk", "onnx", "onnxruntime", "ray",
           "wandb", "mlflow", "datasets", "peft"}
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ImportError(name + " is not part of the core")
sys.meta_path.insert(0, Block())
import calligram.cli.train, calligram.cli.evaluate
import calligram.recipes.catalog, calligram.recipes.parts.run, calligram.training.loop, calligram.evaluation.figures
from calligram.training.loggers import TensorBoardWriter
from pathlib import Path
TensorBoardWriter(Path(".")).add(0, {"x": 1.0})
from calligram.cli.main import import_pyarrow_for_command
from calligram.data.collection import Collection
import_pyarrow_for_command()
Collection.open(sys.argv[1]).sentences("train")
assert "pandas" not in sys.modules
print("fine")
"""
    command = [sys.executable, "-c", script, str(tiny.folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
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


SLOW_IMPORTS = ("transformers", "sklearn", "matplotlib", "scipy", "lancedb")


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("run('list'); run('show', 'vse'); run('info', '{collection}'); run('train', '-h')", set()),
        ("import calligram.cli.evaluate, calligram.studies.results, calligram.evaluation.retrieval", set()),
        ("import calligram.cli.search, calligram.serve.service, calligram.search.indexing.run", {"lancedb"}),
    ],
)
def test_a_verb_imports_slow_packages_only_if_it_needs_them(tiny, code, allowed):
    script = f"""
import contextlib, io, sys
from calligram.cli.main import main
def run(*words):
    sys.argv = ["calligram", *words]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main()
{code.format(collection=tiny.folder)}
print(*(name for name in {SLOW_IMPORTS} if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= allowed
