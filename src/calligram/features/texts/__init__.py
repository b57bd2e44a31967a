"""Text inputs: vocabularies, word pieces, text encoders, word vectors and text vectors."""

from calligram.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
