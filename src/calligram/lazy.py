"""Imports on use: catalogues that hold references, and packages that export names without importing their modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Catalog(Mapping[str, T], Generic[T]):
    """A table of names whose values are imported at the first look-up.

    Args:
        references: ``"package.module:attribute"`` for each name.
    """

    def __init__(self, references: Mapping[str, str]) -> None:
        self.references = dict(references)

    def __getitem__(self, name: str) -> T:
        module, _, attribute = self.references[name].partition(":")
        return getattr(import_module(module), attribute)  # type: ignore[no-any-return]

    def __contains__(self, name: object) -> bool:
        return name in self.references

    def __iter__(self) -> Iterator[str]:
        return iter(self.references)

    def __len__(self) -> int:
        return len(self.references)


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
