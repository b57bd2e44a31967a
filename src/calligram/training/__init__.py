"""The loop, what it is fed, what it minimises, and the folder it writes. It does not know how results are evaluated."""

from calligram.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
