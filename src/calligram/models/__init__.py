"""Trainable maps from inputs to scores. They encode and score; they do not train, log or parse options."""

from calligram.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
