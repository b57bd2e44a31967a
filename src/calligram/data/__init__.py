"""Collections of images and texts, the matches between them, and the import of data sets."""

from calligram.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
