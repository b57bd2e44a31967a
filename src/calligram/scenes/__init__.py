"""Generated scenes with captions, boxes, identities and all true pairs: a data set without a download."""

from calligram.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
