"""Inputs that join images with their regions, sentences with their noun phrases, and features of several backbones.

Matchers that score whole images and regions together use the first two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad

from calligram.data.collection import Collection
from calligram.data.pairing import Visuals
from calligram.errors import UserError
from calligram.features.images.backbones import BackboneInput
from calligram.features.images.pixels import Augment
from calligram.features.images.region_input import GEOMETRY_DIM, ProposalFeatures, RegionInput
from calligram.features.inputs import (
    IMAGE_INPUTS,
    TEXT_INPUTS,
    ImageInput,
    ImageRows,
    TextInput,
    TextRows,
    read_input,
    save_input,
)
from calligram.features.texts.chunker import Chunker
from calligram.progress import Track, silent
from calligram.vectors import unit_length

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class JoinedImageInput(ImageInput):
    """Image input (N, 1 + R, D): the features of the whole image, then those of its regions, padded with zeros."""

    kind: ClassVar[str] = "joined-images"

    whole: ImageInput
    """gives one vector for each whole image"""
    regions: RegionInput
    whole_dim: int
    """dimension of the features of a whole image"""

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the inputs of images and regions into a subfolder each."""
        for name in ("whole", "regions"):
            (folder / name).mkdir(exist_ok=True)
        whole = save_input(IMAGE_INPUTS, self.whole, folder / "whole")
        return {"whole": whole, "regions": self.regions.save(folder / "regions"), "whole_dim": self.whole_dim}

    @classmethod
    def read(cls, folder: Path, content: Mapping[str, Any]) -> JoinedImageInput:
        """Read what ``save`` wrote."""
        found = read_input(IMAGE_INPUTS, "image", folder / "whole", content["whole"])
        return cls(found, RegionInput.read(folder / "regions", content["regions"]), int(content["whole_dim"]))

    def to(self, device: torch.device | str) -> None:
        """Move the frozen network of the whole images to a device."""
        self.whole.to(device)

    def load(self, visuals: Visuals, track: Track = silent) -> JoinedImageRows:
        """Load whole images and the proposals that their collection holds.

        Raises:
            UserError: when the images belong to no collection, or the collection has no proposals for them.
        """
        folder = visuals.pictures.cache.parent
        if not (folder / "collection.json").is_file():
            raise UserError(f"{folder} is no collection; this input reads region proposals from a collection")
        proposed = self.regions.proposal_features(Collection.open(folder), np.unique(visuals.rows), track)
        return JoinedImageRows(self.whole.load(visuals, track), proposed, visuals.rows)

    def images(self, images: list[Image.Image]) -> Tensor:
        """Prepare raw images; their regions are proposed now."""
        whole = self.whole.images(images)
        regions = [self.regions.regions(image, self.regions.propose(image)) for image in images]
        return pad_and_stack(whole, regions)

    def finish(self, rows: Tensor, augment: Augment | None = None) -> Tensor:
        """Finish whole images and regions by their own inputs: (N, 1 + R, D)."""
        raw = self.regions.pooling.dim + GEOMETRY_DIM
        whole = self.whole.finish(rows[:, 0, : self.whole_dim], augment)
        flat = self.regions.finish(rows[:, 1:, :raw].flatten(0, 1), augment)
        regions = flat.view(len(rows), rows.shape[1] - 1, flat.shape[-1])
        width = max(whole.shape[-1], regions.shape[-1])
        return torch.cat([_pad_features(whole.float(), width)[:, None], _pad_features(regions, width)], dim=1)


class JoinedImageRows:
    """Images of a collection with their proposals."""

    def __init__(self, whole: ImageRows, proposed: ProposalFeatures, images: Ints) -> None:
        self._whole, self._proposed, self._images = whole, proposed, images

    def __len__(self) -> int:
        return len(self._images)

    def take(self, rows: Ints) -> Tensor:
        """Return these images and their regions: (N, 1 + R, D)."""
        images = self._images[rows]
        first, last = (np.searchsorted(self._proposed.boxes.images, images, side) for side in ("left", "right"))
        regions = [self._proposed.rows.take(np.arange(a, b)) for a, b in zip(first, last, strict=True)]
        return pad_and_stack(self._whole.take(rows), regions)


@dataclass(frozen=True)
class JoinedTextInput(TextInput):
    """Text input (N, 1 + P, D): the vector of a sentence, then those of its noun phrases, padded with zeros."""

    kind: ClassVar[str] = "joined-texts"

    sentences: TextInput
    phrases: TextInput
    chunker: Chunker = field(repr=False, compare=False)

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the inputs of sentences and phrases into a subfolder each."""
        for name in ("sentences", "phrases"):
            (folder / name).mkdir(exist_ok=True)
        self.chunker.save(folder / "phrases")
        parts = {"sentences": self.sentences, "phrases": self.phrases}
        return {name: save_input(TEXT_INPUTS, part, folder / name) for name, part in parts.items()}

    @classmethod
    def read(cls, folder: Path, content: Mapping[str, Any]) -> JoinedTextInput:
        """Read what ``save`` wrote."""
        # Files of earlier versions have no kind: both were text vectors.
        sentences, phrases = (
            read_input(TEXT_INPUTS, "text", folder / name, {"kind": "text-vectors", **content[name]})
            for name in ("sentences", "phrases")
        )
        return cls(sentences, phrases, Chunker.read(folder / "phrases"))

    def __len__(self) -> int:
        return len(self.sentences)

    def is_known(self, word: str) -> bool:
        """Whether the input of the sentences knows a word."""
        return self.sentences.is_known(word)

    @property
    def mask_token(self) -> int:
        """Refuse: text vectors have no tokens to replace."""
        return self.sentences.mask_token

    def texts(self, strings: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Encode a few sentences, with the mask of real entries."""
        return self.load(strings).take(np.arange(len(strings)))

    def load(self, strings: Sequence[str], cache: Path | None = None, track: Track = silent) -> JoinedTextRows:
        """Encode many sentences; their phrases are found once, and equal phrases are encoded once."""
        found = [[text[span.start : span.end] for span in self.chunker.spans(text)] for text in strings]
        numbers = {phrase: number for number, phrase in enumerate(sorted({p for phrases in found for p in phrases}))}
        rows = [[numbers[phrase] for phrase in phrases] for phrases in found]
        return JoinedTextRows(
            self.sentences.load(strings, cache, track), self.phrases.load(list(numbers), cache, track), rows
        )


class JoinedTextRows:
    """Sentences, and the rows of their phrases among all distinct phrases."""

    def __init__(self, sentences: TextRows, phrases: TextRows, phrase_rows: list[list[int]]) -> None:
        self._sentences, self._phrases, self._phrase_rows = sentences, phrases, phrase_rows
        self.lengths: Ints = np.array([1 + len(own) for own in phrase_rows], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._phrase_rows)

    def take(self, rows: Ints) -> tuple[Tensor, Tensor]:
        """Return these sentences (N, 1 + P, D) and the mask of real entries."""
        phrase_rows = [np.array(self._phrase_rows[row], dtype=np.int64) for row in rows.tolist()]
        vectors = pad_and_stack(self._sentences.take(rows)[0], [self._phrases.take(own)[0] for own in phrase_rows])
        return vectors, torch.arange(vectors.shape[1]) < torch.from_numpy(self.lengths[rows])[:, None]


@dataclass(frozen=True)
class JoinedBackbones(ImageInput):
    """Image input (N, D) from several frozen backbones: their vectors side by side.

    The vector of each backbone is scaled to the square root of its dimension, so that its entries are about 1 and none
    of them decides alone. The features of each backbone are stored as if it were used alone.
    """

    kind: ClassVar[str] = "joined-backbones"

    members: tuple[BackboneInput, ...]

    @classmethod
    def of(cls, members: Sequence[BackboneInput]) -> JoinedBackbones:
        """Join inputs.

        Raises:
            UserError: when one of them gives grid cells, because those of several backbones show different places.
        """
        if any(member.parts != "vector" for member in members):
            raise UserError(
                "several backbones give one vector for an image, and this matcher takes its parts; name one backbone"
            )
        return cls(tuple(members))

    @property
    def dim(self) -> int:
        """Dimension D of the joined vector."""
        return sum(member.backbone.dim for member in self.members)

    def save(self, folder: Path) -> dict[str, Any]:
        """Write each backbone into a subfolder."""
        content = []
        for number, member in enumerate(self.members, 1):
            (folder / f"backbone-{number}").mkdir(exist_ok=True)
            content.append(save_input(IMAGE_INPUTS, member, folder / f"backbone-{number}"))
        return {"members": content}

    @classmethod
    def read(cls, folder: Path, content: Mapping[str, Any]) -> JoinedBackbones:
        """Read what ``save`` wrote."""
        found = (
            read_input(IMAGE_INPUTS, "image", folder / f"backbone-{number}", member)
            for number, member in enumerate(content["members"], 1)
        )
        return cls(tuple(found))

    def to(self, device: torch.device | str) -> None:
        """Move all backbones to a device."""
        for member in self.members:
            member.to(device)

    def load(self, visuals: Visuals, track: Track = silent) -> JoinedBackboneRows:
        """Compute features that the collection's stores lack, and read from the stores."""
        return JoinedBackboneRows([member.load(visuals, track) for member in self.members])

    def images(self, images: list[Image.Image]) -> Tensor:
        """Compute features of raw images."""
        return join_features([member.images(images) for member in self.members])

    def finish(self, rows: Tensor, augment: Augment | None = None) -> Tensor:
        """Convert features to single precision and augment them."""
        return rows.float() if augment is None else augment.features(rows.float())


class JoinedBackboneRows:
    """Stored features of a list of images, by several backbones."""

    def __init__(self, members: Sequence[ImageRows]) -> None:
        self._members = members

    def __len__(self) -> int:
        return len(self._members[0])

    def take(self, rows: Ints) -> Tensor:
        """Return the joined features (N, D) of these images."""
        return join_features([member.take(rows) for member in self._members])


def join_features(vectors: Sequence[Tensor]) -> Tensor:
    """Put vectors (N, D) side by side, each scaled to the square root of its dimension."""
    return torch.cat([unit_length(own) * math.sqrt(own.shape[-1]) for own in vectors], dim=-1)


def pad_and_stack(whole: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """Join vectors (N, D) with N lists of vectors (K, E), padded with zeros: (N, 1 + max K, max(D, E))."""
    width = max([whole.shape[-1], *(p.shape[-1] for p in parts)])
    out = torch.zeros(len(whole), 1 + max((len(p) for p in parts), default=0), width, dtype=torch.float32)
    out[:, 0, : whole.shape[-1]] = whole
    for row, part in enumerate(parts):
        out[row, 1 : 1 + len(part), : part.shape[-1]] = part
    return out


def _pad_features(values: Tensor, width: int) -> Tensor:
    return pad(values, (0, width - values.shape[-1]))
