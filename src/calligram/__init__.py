"""Calligram: which image and which text belong together."""

from calligram.lazy import lazy_exports

__version__ = "0.1.0"
__getattr__, __dir__ = lazy_exports(__name__, __file__)
