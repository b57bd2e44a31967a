"""The HTTP server of a library: a JSON API, pictures, metrics and the search page. Needs ``calligram[serve]``."""

from calligram.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
