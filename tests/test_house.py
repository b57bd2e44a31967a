"""Limits on the size, the names and the paths of the package, so that a reader finds the way in it."""

from __future__ import annotations

import ast
import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import calligram

ROOT = Path(calligram.__file__).parent
FILES_ENTERED = Path(__file__).parent / "files_entered.py"

MAX_FILES = 301
MAX_FILE_LINES = 400
MEDIAN_FILE_LINES = range(80, 211)
MAX_FOLDER_MODULES = 17
MAX_FUNCTION_LINES = 60
"""from the docstring to the end"""
MAX_FILES_ENTERED = {"train": 38, "index": 33, "search": 26, "request": 21}
MAX_MODULES_IMPORTED_BY_TRAINING = 91

NOUNS_IN_ING = {"pairing", "ranking", "grounding", "matching", "training", "indexing", "drawing"}
"""nouns of the field, and the packages that are named by one; other names that end in -ing are gerunds"""
NAMES_WITHOUT_A_NOUN = {
    "AGAIN", "AGAINST", "AHEAD", "ALONE", "APART", "ASKED", "AT_ONCE", "BOTH", "CHANGED", "COMPARED", "DEEPEST",
    "ENOUGH", "FAREWELL", "FEW", "FEWEST", "FOR", "FRESH", "FURTHER", "GRACE", "HELD", "HOW", "KEPT", "KNOWN",
    "LARGE", "LARGEST", "LEAST", "LEFT_OUT", "LONGER", "LONGEST", "LOWEST", "MANY", "MEASURED", "MOST", "NAMED",
    "NEAR", "NEITHER", "NEVER", "NONE", "NOTHING", "NOTHING_NEW", "OF_OTHERS", "OFTEN", "OUTSIDE", "OWN", "PAYS",
    "PLAIN", "RAISED", "REMEMBERED", "SAID", "SAMPLED", "SHOWN", "SINGLE", "SMALL", "STILL", "STORED", "TAKEN",
    "TALL", "TINY", "TOLD", "TRIED", "TRIES", "TURNS", "UNPLANNED", "WANTED", "WARM", "WHEN", "WHOLE", "WIDTH",
    "WITHIN", "WORDED", "WORKED",
}  # fmt: skip
"""a constant's name has a noun, and a unit where the value has one: READ_BATCH_ROWS, not AT_ONCE"""


@cache
def trees() -> list[tuple[Path, ast.Module]]:
    return [
        (file.relative_to(ROOT), ast.parse(file.read_text(encoding="utf-8"))) for file in sorted(ROOT.rglob("*.py"))
    ]


@pytest.fixture(scope="module")
def lines() -> dict[str, int]:
    return {str(f.relative_to(ROOT)): len(f.read_text(encoding="utf-8").splitlines()) for f in ROOT.rglob("*.py")}


def test_number_of_files(lines):
    print(f"{len(lines)} files, {sum(lines.values()):,} lines")
    assert len(lines) <= MAX_FILES


def test_no_file_is_too_long(lines):
    longest = max(lines, key=lambda file: lines[file])
    print(f"longest file: {longest}, {lines[longest]} lines")
    assert not {file: count for file, count in lines.items() if count > MAX_FILE_LINES}


def test_median_length_of_files(lines):
    median = statistics.median(count for file, count in lines.items() if not file.endswith("__init__.py"))
    print(f"median of a file: {median:g} lines")
    assert MEDIAN_FILE_LINES.start <= median < MEDIAN_FILE_LINES.stop


def test_no_folder_has_too_many_modules(lines):
    folders = defaultdict(int)
    for file in lines:
        folders[str(Path(file).parent)] += not file.endswith("__init__.py")
    largest = max(folders, key=lambda folder: folders[folder])
    print(f"largest folder: {largest}, {folders[largest]} modules")
    assert not {folder: count for folder, count in folders.items() if count > MAX_FOLDER_MODULES}


def test_no_function_is_too_long():
    found = {
        f"{file}::{node.name}": length
        for file, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := node.end_lineno - node.body[0].lineno + 1) > MAX_FUNCTION_LINES
    }
    assert not found


def test_no_module_is_named_by_a_gerund():
    names = {part.removesuffix(".py") for file, _ in trees() for part in file.parts}
    assert not {n for n in names if n.endswith("ing") and n.rpartition("_")[2] not in NOUNS_IN_ING}


def test_a_class_name_has_one_meaning():
    classes = defaultdict(list)
    for file, tree in trees():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(str(file))
    assert not {name: files for name, files in classes.items() if len(files) > 1}


def test_constants_have_a_noun_in_their_name():
    found = defaultdict(list)
    for file, tree in trees():
        for name in _constants(tree):
            if name.lstrip("_") in NAMES_WITHOUT_A_NOUN:
                found[str(file)].append(name)
    assert not dict(found)


def _constants(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        for target in targets:
            for name in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(name, ast.Name) and name.id.isupper():
                    yield name.id


def test_no_import_cycles():
    modules = {str(file.with_suffix("")).replace("/", "."): tree for file, tree in trees()}
    imports = {name: set(_imports(tree, set(modules))) for name, tree in modules.items()}
    finished: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"import cycle: {' -> '.join((*path[path.index(module) :], module))}"
        if module not in finished:
            for other in sorted(imports[module]):
                visit(other, (*path, module))
            finished.add(module)

    for module in modules:
        visit(module, ())


def _imports(tree: ast.Module, modules: set[str]) -> Iterator[str]:
    """Modules of the package that run when this one is imported; imports within functions do not count."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "calligram":
            package = node.module.removeprefix("calligram").lstrip(".")
            for alias in node.names:
                inner = f"{package}.{alias.name}".lstrip(".")
                if inner in modules or package in modules:
                    yield inner if inner in modules else package


def test_the_design_names_files_that_exist():
    text = (Path(__file__).parent.parent / "docs" / "design.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", text))
    top = Path(__file__).parent.parent
    files = [f"/{file}" for file, _ in trees()]
    files += [
        file.as_posix() for folder in ("tests", "examples", "docs", "bench") for file in (top / folder).rglob("*.py")
    ]
    assert len(named) > 50
    assert not {name for name in named if not any(file.endswith(f"/{name}") for file in files)}


def measure(folder: Path, preloaded) -> dict[str, dict[str, list[str]]]:
    """Train, index, search and send a request on tiny data in a process of its own."""
    from calligram.scenes.generate import generate_scenes

    generate_scenes(folder / "scenes", images=40, size=32)
    sizes = "epochs=1", "batch=8", "dim=16", "image.size=16", "image.channels=4", "text.hidden=8", "text.word_dim=8"
    settings = [word for size in sizes for word in ("--set", size)]
    scenes, run, library = (str(folder / name) for name in ("scenes", "run", "library"))
    works = [
        ["train", "vse", scenes, "--out", run, "--device", "cpu", *settings],
        ["index", run, scenes, "--out", library, "--device", "cpu"],
        ["search", library, "a dog on the beach"],
        ["request", library, "a dog on the beach"],
    ]
    words = [word for work in works for word in ("--", *work)]
    done = preloaded.run(f"import runpy; runpy.run_path({str(FILES_ENTERED)!r}, run_name='__main__')", *words)
    assert done.returncode == 0, done.stderr
    return dict(zip(MAX_FILES_ENTERED, json.loads(done.stdout.splitlines()[-1]), strict=True))


def test_files_entered_and_modules_imported(tmp_path, preloaded):
    reports = measure(tmp_path, preloaded)
    counts = {work: len(report["entered"]) for work, report in reports.items()}
    imported = reports["train"]["imported"]
    for work, report in reports.items():
        print(f"{work} enters {counts[work]} files: {' '.join(report['entered'])}")
    print(f"train vse imports {len(imported)} modules: {' '.join(imported)}")
    assert len(imported) <= MAX_MODULES_IMPORTED_BY_TRAINING
    assert not {work: count for work, count in counts.items() if count > MAX_FILES_ENTERED[work]}
