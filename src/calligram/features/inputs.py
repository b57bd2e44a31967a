"""Preparation of images and texts as model input.

The inputs are saved with a matcher, so that queries are prepared in the same way as the training data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from calligram.errors import UserError, unknown
from calligram.progress import Track, silent

if TYPE_CHECKING:
    from calligram.data.pairing import Visuals
    from calligram.features.images.pixels import Augment
    from calligram.features.texts.chunker import Chunker

Ints = NDArray[np.int64]


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
    """Prepares images for ``Matcher.encode_images``: a first part once on the host, a second part on the device."""

    def load(self, visuals: Visuals, track: Track) -> ImageRows:
        """Prepare many images of a collection."""
        ...

    def images(self, images: list[Image.Image]) -> Tensor:
        """Prepare a few raw images."""
        ...

    def finish(self, rows: Tensor, augment: Augment | None = None) -> Tensor:
        """Run the device part on a batch of ``load`` or ``images``."""
        ...


class TextInput(Saveable, Protocol):
    """Prepares strings for ``Matcher.encode_texts``."""

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


IMAGE_INPUTS: Mapping[str, str] = {
    "pixels": "calligram.features.images.pixels:PixelInput",
    "stored": "calligram.features.images.stored_input:StoredInput",
    "backbone": "calligram.features.images.backbones:BackboneInput",
    "regions": "calligram.features.images.region_input:RegionInput",
    "joined-images": "calligram.features.joined_input:JoinedImageInput",
}
"""where the class of each kind of image input is; it is imported when a saved matcher has it"""
TEXT_INPUTS: Mapping[str, str] = {
    "words": "calligram.features.texts.vocabulary:Vocabulary",
    "wordpieces": "calligram.features.texts.wordpieces:WordPieces",
    "encoder": "calligram.features.texts.text_encoder:EncoderInput",
    "text-vectors": "calligram.features.texts.text_vectors:TextVectorInput",
    "joined-texts": "calligram.features.joined_input:JoinedTextInput",
    "concepts": "calligram.features.pseudo.concepts:ConceptInput",
}
"""the same for text inputs"""


@dataclass(frozen=True)
class Inputs:
    """The image input and the text input of a matcher, and a noun-phrase chunker if the matcher scores regions."""

    images: ImageInput
    texts: TextInput
    chunker: Chunker | None = None

    def to(self, device: torch.device | str) -> Inputs:
        """Move the frozen networks of both inputs to a device."""
        # By their kind: importing every class of input here would slow down each start of a search.
        images: Any = self.images
        texts: Any = self.texts
        if images.kind == "joined-images":
            images = images.whole
        if images.kind == "backbone":
            images.backbone.to(device)
        if texts.kind == "encoder":
            texts.encoder.to(device)
        return self

    def save(self, folder: Path) -> None:
        """Write ``inputs.json`` and the further files of both inputs into ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        content: dict[str, Any] = {
            side: {"kind": part.kind, **part.save(folder)}
            for side, part in (("images", self.images), ("texts", self.texts))
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
        try:
            content = json.loads((folder / "inputs.json").read_text(encoding="utf-8"))
            images, texts = dict(content["images"]), dict(content["texts"])
        except (OSError, ValueError, KeyError) as error:
            raise UserError(
                f"{folder} does not hold the inputs of a matcher ({error}); give the folder of a saved matcher"
            ) from error
        kinds = images.pop("kind"), texts.pop("kind")
        for side, kind, known in (("image", kinds[0], IMAGE_INPUTS), ("text", kinds[1], TEXT_INPUTS)):
            if kind not in known:
                raise unknown(f"{side} input", kind, known)
        image_class: type[ImageInput] = resolve_name(IMAGE_INPUTS[kinds[0]])
        text_class: type[TextInput] = resolve_name(TEXT_INPUTS[kinds[1]])
        chunker = None
        if "chunker" in content:
            from calligram.features.texts.chunker import Chunker

            chunker = Chunker.read(folder)
        return cls(image_class.read(folder, images), text_class.read(folder, texts), chunker)
