"""Calligram: which image and which text belong together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Collection", "Searcher", "__version__", "evaluate", "load", "train"]

if TYPE_CHECKING:
    from calligram.data.collection import Collection
    from calligram.evaluation.retrieval import evaluate_retrieval as evaluate
    from calligram.recipes.parts.run import train_recipe as train
    from calligram.search.query.searcher import Searcher
    from calligram.training.runs import load_run as load

_DOORS = {
    "Collection": ("calligram.data.collection", "Collection"),
    "Searcher": ("calligram.search.query.searcher", "Searcher"),
    "evaluate": ("calligram.evaluation.retrieval", "evaluate_retrieval"),
    "load": ("calligram.training.runs", "load_run"),
    "train": ("calligram.recipes.parts.run", "train_recipe"),
}


def __getattr__(name: str) -> Any:
    """Import what is asked for: ``import calligram`` alone takes no time."""
    from importlib import import_module

    if name not in _DOORS:
        raise AttributeError(f"module 'calligram' has no attribute '{name}'")
    module, attribute = _DOORS[name]
    return getattr(import_module(module), attribute)
