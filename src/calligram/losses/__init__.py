"""Losses: functions of tensors. The modules import nothing from the other packages of the project."""

from calligram.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
