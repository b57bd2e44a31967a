"""Studies: claims of papers as rows that can be run, judged and reported."""

from calligram.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
