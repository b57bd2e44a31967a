"""Imports on use: catalogues that hold references, and packages that export names without importing their modules."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
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


def lazy_exports(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package, from the stub file beside its ``__init__.py``.

    The stub lists the public names as ``from calligram.package.module import Name as Name``. Type checkers read the
    same file, so the names are listed once.
    """
    found: dict[str, tuple[str, str]] = {}
    for node in ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}

    def get(name: str) -> Any:
        if name not in found:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        module, attribute = found[name]
        if module == package:
            return import_module(f"{package}.{attribute}")
        return getattr(import_module(module), attribute)

    return get, lambda: sorted(found), sorted(found)
