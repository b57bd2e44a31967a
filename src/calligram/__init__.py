"""Calligram: which image and which text belong together."""

__version__ = "0.1.0"
