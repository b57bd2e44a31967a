"""Words for images without captions: region classes, classifier labels and predicted caption words."""

from calligram.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
