"""Complete programs: which matcher, which objective, which stages, and what a paper claims of them."""

from calligram.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
