"""Drawings of people, animals, objects and backdrops as polygons, and the rendering of a scene."""

from calligram.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
