"""A matcher's two sides as modules from plain arrays to unit vectors, as other runtimes need them."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from calligram.errors import UserError
from calligram.features.backbone_input import BackboneInput
from calligram.features.encoder_input import EncoderInput
from calligram.features.inputs import ImageInput, TextInput
from calligram.features.pixels import PixelInput
from calligram.models.layers import RecurrentText
from calligram.models.matcher import Matcher, unit
from calligram.models.padded_text import PaddedText

STRINGS = ("a man in a red shirt throws a ball to his dog by the sea", "snow", "two girls dance", "one, and another")


class Given(NamedTuple):
    """One input of a graph; the first axis is the batch."""

    name: str
    about: str
    longest: int = 0
    """of the second axis, where it may change; 0 where it may not"""


class Graph(nn.Module):
    """One side of a matcher."""

    given: tuple[Given, ...]

    def __init__(self, matcher: Matcher) -> None:
        super().__init__()
        self.matcher = matcher

    def reference(self, *given: Tensor) -> Tensor:
        """What the graph must give."""
        return self(*given)  # type: ignore[no-any-return]

    def samples(self) -> list[tuple[Tensor, ...]]:
        """Random inputs, the first to build the graph from, the others of other shapes."""
        raise NotImplementedError


class ImageGraph(Graph):
    """Bytes of resized pictures (N, 3, H, W) to unit vectors, normalisation and all; or stored features (N, D)."""

    def __init__(self, matcher: Matcher, source: ImageInput) -> None:
        super().__init__(matcher)
        self.source = source
        self.backbone = copy.deepcopy(source.backbone).cpu().eval() if isinstance(source, BackboneInput) else None
        self.pixels = source.pixels if isinstance(source, BackboneInput) else source
        pixels = Given("pixels", "RGB bytes of pictures resized as the preparation says")
        features = Given("features", "features of pictures, averaged where a picture has several")
        self.given = (pixels if isinstance(self.pixels, PixelInput) else features,)

    def forward(self, images: Tensor) -> Tensor:
        """(N, dim)."""
        images = self.pixels.finish(images)
        if self.backbone is not None:
            assert isinstance(self.source, BackboneInput)
            images = self.source.seen(self.backbone, images)
        return unit(self.matcher.encode_images(images).vectors)

    def samples(self) -> list[tuple[Tensor, ...]]:
        """Random bytes or features."""
        random = torch.Generator().manual_seed(0)
        if isinstance(self.pixels, PixelInput):
            shape = (3, self.pixels.size, self.pixels.size)
            return [(torch.randint(0, 256, (n, *shape), dtype=torch.uint8, generator=random),) for n in (2, 1, 5)]
        dim = getattr(self.matcher.settings, "feature_dim", None)
        if dim is None:
            raise UserError(
                "this matcher takes stored features of a shape that is not known; train on pixels to export"
            )
        return [(torch.randn(n, dim, generator=random),) for n in (2, 1, 5)]


class TextGraph(Graph):
    """Numbers of words (N, W) and their mask to unit vectors, through a frozen encoder where there is one."""

    def __init__(self, matcher: Matcher, source: TextInput) -> None:
        super().__init__(unpacked(matcher))
        self.source = source.pieces if isinstance(source, EncoderInput) else source
        self.encoder = copy.deepcopy(source.encoder).cpu().eval() if isinstance(source, EncoderInput) else None
        self._original = [matcher]  # in a list, so that its weights are not this module's too
        longest = int(self.source.load([" ".join(STRINGS * 200)]).lengths.max())
        self.given = (
            Given("words", "numbers of words or pieces, as the preparation gives them", longest),
            Given("mask", "true where a number is real, false where it pads", longest),
        )

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """(N, dim)."""
        return unit(self.matcher.encode_texts(self._seen(words, mask), mask).vectors)

    def _seen(self, words: Tensor, mask: Tensor) -> Tensor:
        return words if self.encoder is None else self.encoder(words, mask)

    def reference(self, *given: Tensor) -> Tensor:
        """By the matcher itself."""
        words, mask = given
        return unit(self._original[0].encode_texts(self._seen(words, mask), mask).vectors)

    def samples(self) -> list[tuple[Tensor, ...]]:
        """Texts of several lengths whose inner words are random."""
        words, mask = self.source.texts(STRINGS)
        last, places = mask.sum(1, keepdim=True) - 1, torch.arange(words.shape[1])
        drawn = torch.randint(4, max(5, len(self.source)), words.shape, generator=torch.Generator().manual_seed(0))
        words = torch.where((places > 0) & (places < last), drawn, words)
        width = int(last[1:].max()) + 1
        return [(words, mask), (words[1:, :width], mask[1:, :width]), (words[:1], mask[:1])]


def unpacked(matcher: Matcher) -> Matcher:
    """A copy whose recurrent text branches work on padded words."""
    changed = copy.deepcopy(matcher)
    for name, module in matcher.named_modules():
        if isinstance(module, RecurrentText):
            parent, _, child = name.rpartition(".")
            setattr(changed.get_submodule(parent), child, PaddedText(module))
    return changed.eval()
