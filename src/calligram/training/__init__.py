"""The training loop, its batches and objectives, and run folders. It receives the evaluation as a function."""

from calligram.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
