"""Libraries of pictures: indexing, search by texts and pictures, explanations. Needs ``calligram[search]``."""

from calligram.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
