"""Evaluation of matchers: ``ranking`` computes metrics from scores, ``retrieval`` runs matchers. No training."""

from calligram.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
