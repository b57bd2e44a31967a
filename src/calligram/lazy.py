"""Imports on use: catalogues that hold references, and packages that export names without importing their modules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar

from calligram.errors import UnknownClassError, UserError, unknown

T = TypeVar("T")


class Catalog(Mapping[str, T], Generic[T]):
    """A table of names whose values are imported at the first look-up.

    A value from outside the package joins the table by ``register``, or as an entry point of an installed package.
    Entry points are read only for a name that is not in the table.

    Args:
        references: ``"package.module:attribute"`` for each name.
        group: entry point group of installed packages that add to the table; empty for none.
    """

    def __init__(self, references: Mapping[str, str], group: str = "") -> None:
        self.references = dict(references)
        self.group = group
        self._registered: dict[str, T] = {}

    def register(self, name: str, value: T) -> None:
        """Add a class or a function under a new name. Defining it again, as in a notebook, replaces it.

        Raises:
            UserError: when another class or function has the name.
        """
        before = self._registered.get(name)
        replaces = before is None or self._defined(before).__qualname__ == self._defined(value).__qualname__
        if name in self.references or not replaces:
            raise UserError(f"the name '{name}' is in use already; choose another name")
        self._registered[name] = value

    def _defined(self, value: T) -> Any:
        """Return the class or function that a value of the table stands for."""
        return value

    def find(self, name: str, kind: str, source: str = "") -> T:
        """Return the value of a name that the user or a file gives. Imports nothing that a file names.

        Args:
            kind: what the table holds, for the error message.
            source: ``"module:Class"`` if a file names where the class comes from.

        Raises:
            UserError: when the name is unknown. The message tells how to allow the class that the file names.
        """
        try:
            return self[name]
        except KeyError:
            pass
        if not source:
            raise unknown(kind, name, {*self, *entry_points_of(self.group)})
        module = source.partition(":")[0]
        python = module.removesuffix(".py")
        raise UnknownClassError(
            f"{kind} '{name}' is the class {source}, which is not part of Calligram, and loading a file never imports "
            f'code. If you trust this code: in Python, write "import {python}" before loading; on the command line, '
            f'use "calligram --import {module} VERB ...". Or install a package that declares the name in the entry '
            f"point group {self.group}"
        )

    def __getitem__(self, name: str) -> T:
        if name in self._registered:
            return self._registered[name]
        if name in self.references:
            return self._resolve(self.references[name])
        reference = entry_points_of(self.group)[name]
        try:
            return self._resolve(reference)
        except (ImportError, AttributeError) as error:
            raise UserError(
                f"an installed package declares '{name}' as {reference} in the entry point group {self.group}, which "
                f"cannot be imported ({error}); repair or remove the package"
            ) from error

    def _resolve(self, reference: str) -> T:
        module, _, attribute = reference.partition(":")
        return getattr(import_module(module), attribute)  # type: ignore[no-any-return]

    def __contains__(self, name: object) -> bool:
        return name in self.references or name in self._registered or name in entry_points_of(self.group)

    def __iter__(self) -> Iterator[str]:
        yield from self.references
        yield from self._registered

    def __len__(self) -> int:
        return len(self.references) + len(self._registered)


def entry_points_of(group: str) -> dict[str, str]:
    """Return the references ``"module:attribute"`` that installed packages declare in a group, by name.

    Imports none of them.
    """
    if not group:
        return {}
    from importlib.metadata import entry_points  # here, because it takes time and most commands do not need it

    return {entry.name: entry.value.replace(" ", "") for entry in entry_points(group=group)}


ALLOWED_CODE: list[str] = []
"""modules and files that ``import_code`` imported, for worker processes"""


def import_code(name: str) -> None:
    """Import a module by name, or a Python file by path, that the user asked for. This runs its code.

    Raises:
        UserError: when there is no such module or file.
    """
    if not name.endswith(".py"):
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            raise UserError(
                f"--import {name}: there is no installed module with this name; give an installed module, or the path "
                "of a file that ends in .py"
            ) from None
    else:
        _import_file(Path(name).expanduser())
    ALLOWED_CODE.append(name if not name.endswith(".py") else str(Path(name).expanduser().resolve()))


def _import_file(file: Path) -> None:
    from importlib.util import module_from_spec, spec_from_file_location

    if not file.is_file():
        raise UserError(f"--import {file}: there is no such file; give an existing Python file or an installed module")
    before = sys.modules.get(file.stem)
    if before is not None:
        if Path(getattr(before, "__file__", None) or "").resolve() == file.resolve():
            return
        raise UserError(f"--import {file}: another module has the name '{file.stem}' already; rename the file")
    sys.path.append(str(file.resolve().parent))  # the file may import its neighbours
    spec = spec_from_file_location(file.stem, file)
    assert spec is not None, "the name ends in .py"
    assert spec.loader is not None
    module = sys.modules[file.stem] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[file.stem]
        raise


def reference_to(value: Any) -> str:
    """Return ``"module:Class"`` of a class or function; for a script, the name of its file instead of ``__main__``."""
    module = str(value.__module__)
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec is not None else Path(file).name if file else module
    return f"{module}:{value.__qualname__}"


def lazy_exports(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make ``__getattr__`` and ``__dir__`` of a package from the stub file next to its ``__init__.py``.

    The stub lists the public names as ``from calligram.package.module import Name as Name``, and second names as
    ``second = Name``. Type checkers read the same file, so the names are listed once. It is read when the first name is
    used.
    """

    @cache
    def references() -> dict[str, tuple[str, str]]:
        import ast  # here, because most commands use no exported name

        stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
        found: dict[str, tuple[str, str]] = {}
        for node in stub.body:
            if isinstance(node, ast.ImportFrom):
                found |= {alias.name: (str(node.module), alias.name) for alias in node.names}
            elif isinstance(node, ast.Assign):
                found[ast.unparse(node.targets[0])] = found[ast.unparse(node.value)]
        return found

    def get(name: str) -> Any:
        if name == "__all__":
            return sorted(references())
        if name.startswith("__") or name not in references():
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        module, attribute = references()[name]
        return (
            import_module(f"{package}.{attribute}") if module == package else getattr(import_module(module), attribute)
        )

    return get, lambda: sorted(references())
