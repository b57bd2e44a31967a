"""How good a matcher is. ``ranking`` is pure arithmetic; ``retrieval`` runs matchers; nothing here trains."""

from calligram.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
