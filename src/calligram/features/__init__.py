"""Inputs of matchers: turn images and texts into tensors, from stored features or on the fly."""

from calligram.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
