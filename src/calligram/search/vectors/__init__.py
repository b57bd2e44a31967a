"""Vector indexes: exact in memory, Lance, Milvus. Nothing above knows which."""

from calligram.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
