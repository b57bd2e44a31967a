"""Preparation of images and texts as model input.

The inputs are saved with a matcher, so that queries are prepared in the same way as the training data.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from calligram.checksums import check_listed
from calligram.errors import UserError
from calligram.lazy import Catalog, reference_to
from calligram.progress import Track, silent
from calligram.records import anything, read_object, record, text

if TYPE_CHECKING:
    from calligram.data.collection import Collection
    from calligram.data.pairing import Visuals
    from calligram.features.images.pixels import Augment, PixelInput
    from calligram.features.images.region_input import RegionInput
    from calligram.features.texts.chunker import Chunker
    from calligram.features.texts.vocabulary import Vocabulary
    from calligram.text import TextSpan

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
S = TypeVar("S", bound="Saveable")
RESTORE = "restore them from a copy, or train again into another folder"
INPUTS_SCHEMA = record(
    {"images": record({"kind": text()}, closed=False), "texts": record({"kind": text()}, closed=False)},
    {"chunker": anything},
)
"""of ``inputs.json``"""


class ImageRows(Protocol):
    """Images of a pairing, available in batches."""

    def __len__(self) -> int: ...
    def take(self, rows: Ints) -> Tensor:
        """Return the images ``rows`` as a tensor on the host, for ``ImageInput.finish``."""
        ...


class TextRows(Protocol):
    """Texts of a pairing, available in batches."""

    lengths: Ints
    """(N,) number of tokens of each text, for batches of equal length"""

    def __len__(self) -> int: ...
    def take(self, rows: Ints) -> tuple[Tensor, Tensor]:
        """Return padded token ids or encoder states of the texts ``rows``, and their mask."""
        ...


class Saveable(Protocol):
    """An input that can be saved with a matcher and read back."""

    kind: ClassVar[str]

    def save(self, folder: Path) -> dict[str, Any]:
        """Write large data into ``folder`` and return the rest as JSON content."""
        ...

    @classmethod
    def read(cls, folder: Path, content: Mapping[str, Any]) -> Any:
        """Read what ``save`` wrote."""
        ...


class ImageInput(Saveable, Protocol):
    """Prepares images for ``Matcher.encode_images``: a first part once on the host, a second part on the device.

    A subclass implements ``load``, ``images``, ``finish``, ``save`` and ``read``. The other members state what the
    input can do beyond that. Their defaults are right for an input without the ability.
    """

    def load(self, visuals: Visuals, track: Track = silent) -> ImageRows:
        """Prepare many images of a collection."""
        ...

    def images(self, images: list[Image.Image]) -> Tensor:
        """Prepare a few raw images."""
        ...

    def finish(self, rows: Tensor, augment: Augment | None = None) -> Tensor:
        """Run the device part on a batch of ``load`` or ``images``."""
        ...

    @property
    def pixel_input(self) -> PixelInput | None:
        """Resizes an image to the bytes that ``run_network`` takes; None if a resized image is not all it needs."""
        return None

    def has_pixels_of(self, other: ImageInput) -> bool:
        """Whether the images of a training batch are pixels, and the same as those of another input."""
        del other
        return False

    @property
    def network(self) -> nn.Module | None:
        """Frozen network of ``run_network``; None if there is none."""
        return None

    def run_network(self, pixels: Tensor, network: nn.Module | None = None) -> Tensor:
        """Compute the rows that ``finish`` takes from resized images (N, 3, H, W) on the network's device.

        Args:
            network: used in place of the frozen network, such as a copy of it.
        """
        del network
        return pixels

    @property
    def stored_name(self) -> str | None:
        """Name of the stored features that are read instead of the image; None if the image is read."""
        return None

    @property
    def region_input(self) -> RegionInput | None:
        """Proposes and encodes single regions, for phrase localization; None if an item is a whole image."""
        return None

    def part_boxes(self, size: tuple[int, int], count: int) -> Floats | None:
        """Return the boxes (count, 4) of the parts of an image, as shares of it: left, top, right and bottom.

        None if the parts have no known boxes.

        Args:
            size: width and height of the image.
        """
        del size, count
        return None

    def to(self, device: torch.device | str) -> None:
        """Move the frozen network to a device."""
        if self.network is not None:
            self.network.to(device)


class TextInput(Saveable, Protocol):
    """Prepares strings for ``Matcher.encode_texts``.

    A subclass implements ``mask_token``, ``__len__``, ``is_known``, ``load``, ``texts``, ``save`` and ``read``. The
    other members state what the input can do beyond that. Their defaults are right for an input without the ability.
    """

    @property
    def mask_token(self) -> int:
        """Id of the token that replaces a word in word dropout."""
        ...

    def __len__(self) -> int:
        """Return the size of the vocabulary."""
        ...

    def is_known(self, word: str) -> bool:
        """Whether a lower-case word has a token or vector of its own; always true for inputs that split words."""
        ...

    def load(self, strings: Sequence[str], cache: Path | None = None, track: Track = silent) -> TextRows:
        """Encode many texts once; slow encodings are stored in ``cache``."""
        ...

    def texts(self, strings: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Encode a few texts: padded token ids or vectors, and their mask."""
        ...

    @property
    def token_input(self) -> TextInput | None:
        """Input that turns a text into token ids: this one, or the tokenizer of a frozen network; None without ids."""
        return None

    @property
    def network(self) -> nn.Module | None:
        """Frozen network of ``run_network``; None if there is none."""
        return None

    def run_network(self, tokens: Tensor, mask: Tensor, network: nn.Module | None = None) -> Tensor:
        """Compute the rows for ``Matcher.encode_texts`` from token ids (N, W) of ``token_input`` and their mask.

        Args:
            network: used in place of the frozen network, such as a copy of it.
        """
        del mask, network
        return tokens

    @property
    def vocabulary(self) -> Vocabulary | None:
        """Words by id, if each token is a whole word; None for inputs that split words or give vectors."""
        return None

    @property
    def vector_size(self) -> int | None:
        """Size of the vector of a text; None if a text has several tokens."""
        return None

    def token_spans(self, text: str) -> list[TextSpan | None] | None:
        """Return the span of each token in the text, None for special tokens; None instead of a list if not known."""
        del text
        return None

    def to(self, device: torch.device | str) -> None:
        """Move the frozen network to a device."""
        if self.network is not None:
            self.network.to(device)


IMAGE_INPUTS: Catalog[type[ImageInput]] = Catalog(
    {
        "pixels": "calligram.features.images.pixels:PixelInput",
        "stored": "calligram.features.images.stored_input:StoredInput",
        "backbone": "calligram.features.images.backbones:BackboneInput",
        "regions": "calligram.features.images.region_input:RegionInput",
        "joined-images": "calligram.features.joined_input:JoinedImageInput",
        "joined-backbones": "calligram.features.joined_input:JoinedBackbones",
    },
    "calligram.image_inputs",
)
"""class of each kind of image input; it is imported when a saved matcher has it"""
TEXT_INPUTS: Catalog[type[TextInput]] = Catalog(
    {
        "words": "calligram.features.texts.vocabulary:Vocabulary",
        "wordpieces": "calligram.features.texts.wordpieces:WordPieces",
        "encoder": "calligram.features.texts.text_encoder:EncoderInput",
        "text-vectors": "calligram.features.texts.text_vectors:TextVectorInput",
        "joined-texts": "calligram.features.joined_input:JoinedTextInput",
        "concepts": "calligram.features.pseudo.concepts:ConceptInput",
    },
    "calligram.text_inputs",
)
"""class of each kind of text input"""


def image_input(name: str) -> Callable[[type[S]], type[S]]:
    """Return a class decorator that makes an ``ImageInput`` known under a name, so that it can be saved and loaded."""
    return lambda input_class: _named(IMAGE_INPUTS, name, input_class)


def text_input(name: str) -> Callable[[type[S]], type[S]]:
    """Return a class decorator that makes a ``TextInput`` known under a name, so that it can be saved and loaded."""
    return lambda input_class: _named(TEXT_INPUTS, name, input_class)


def _named(catalog: Catalog[Any], name: str, input_class: type[S]) -> type[S]:
    catalog.register(name, input_class)
    input_class.kind = name
    return input_class


def save_input(catalog: Catalog[Any], part: Saveable, folder: Path) -> dict[str, Any]:
    """Write an input into ``folder`` and return its JSON content with its kind, for ``read_input``.

    Raises:
        UserError: when its class is not in the catalogue.
    """
    if part.kind in catalog.references:
        return {"kind": part.kind, **part.save(folder)}
    if part.kind not in catalog:
        raise UserError(
            f"the class {reference_to(type(part))} is not known as an input and could not be loaded again; register it "
            "with the decorator calligram.image_input(NAME) or calligram.text_input(NAME)"
        )
    return {"kind": part.kind, "class": reference_to(type(part)), **part.save(folder)}


def read_input(catalog: Catalog[Any], side: str, folder: Path, content: Mapping[str, Any]) -> Any:
    """Read an input that ``save_input`` wrote.

    Raises:
        UserError: when the kind is unknown.
    """
    rest = dict(content)
    kind, source = str(rest.pop("kind", "")), str(rest.pop("class", ""))
    if kind in catalog.references:
        return resolve_name(catalog.references[kind]).read(folder, rest)
    return catalog.find(kind, f"{side} input", source).read(folder, rest)


@dataclass(frozen=True)
class Inputs:
    """The image input and the text input of a matcher, and a noun-phrase chunker if the matcher scores regions."""

    images: ImageInput
    texts: TextInput
    chunker: Chunker | None = None

    def to(self, device: torch.device | str) -> Inputs:
        """Move the frozen networks of both inputs to a device."""
        self.images.to(device)
        self.texts.to(device)
        return self

    def save(self, folder: Path) -> None:
        """Write ``inputs.json`` and the further files of both inputs into ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        content: dict[str, Any] = {
            "images": save_input(IMAGE_INPUTS, self.images, folder),
            "texts": save_input(TEXT_INPUTS, self.texts, folder),
        }
        if self.chunker is not None:
            content["chunker"] = self.chunker.save(folder)
        (folder / "inputs.json").write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Inputs:
        """Read the inputs that ``save`` wrote.

        Raises:
            UserError: when the folder holds no inputs, or an input is of an unknown kind.
        """
        check_listed(folder, None, RESTORE)
        try:
            content = read_object(folder / "inputs.json", RESTORE, INPUTS_SCHEMA)
        except OSError as error:
            raise UserError(
                f"{folder} does not hold the inputs of a matcher ({error}); give the folder of a saved matcher"
            ) from error
        try:
            chunker = None
            if "chunker" in content:
                from calligram.features.texts.chunker import Chunker

                chunker = Chunker.read(folder)
            images = read_input(IMAGE_INPUTS, "image", folder, content["images"])
            texts = read_input(TEXT_INPUTS, "text", folder, content["texts"])
        except UserError:
            raise
        except Exception as error:  # values of any kind reach the constructors of any class
            shown = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise UserError(f"the inputs in {folder} cannot be read ({shown}); {RESTORE}") from error
        return cls(images, texts, chunker)


def default_inputs(
    data: Collection | str | os.PathLike[str], *, image_size: int = 96, min_count: int = 1, max_words: int = 60
) -> Inputs:
    """Return inputs for a matcher that reads pixels and words: all words of the training captions, by default.

    Images are tensors (N, 3, image_size, image_size), texts are word ids (N, W) with a mask (N, W). Id 0 is padding.
    ``len(inputs.texts)`` is the number of ids.

    Args:
        data: a collection, or its folder.
        image_size: height and width of the resized images in pixels.
        min_count: rarer words share one id.
        max_words: longer texts are truncated.
    """
    from calligram.data.collection import Collection
    from calligram.features.images.pixels import PixelInput
    from calligram.features.texts.vocabulary import Vocabulary

    collection = data if isinstance(data, Collection) else Collection.open(data)
    captions = collection.sentences("train").texts.strings
    return Inputs(PixelInput(image_size), Vocabulary.build(captions, min_count, max_words))
