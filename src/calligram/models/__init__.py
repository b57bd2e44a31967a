"""Matchers: models that encode images and texts, and score pairs of them. They do not train, log or parse options."""

from calligram.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
