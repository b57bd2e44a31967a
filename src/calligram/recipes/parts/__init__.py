"""The parts that recipes are composed of: settings, towers, stages, mined negatives, pseudo pairs."""

from calligram.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
