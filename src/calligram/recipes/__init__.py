"""Recipes: named programs that make a matcher from a collection, by name in ``catalog``."""

from calligram.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
