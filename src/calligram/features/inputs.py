"""From raw pictures and strings to model input; saved with a matcher, so that queries are prepared as training was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from calligram.data.pairing import Visuals
from calligram.errors import UserError, unknown
from calligram.lazy import Catalog
from calligram.progress import Track, silent

if TYPE_CHECKING:
    from calligram.features.images.pixels import Augment
    from calligram.features.texts.chunker import Chunker

Ints = NDArray[np.int64]


class ImageRows(Protocol):
    """Images of a pairing, ready to be taken in batches."""

    def __len__(self) -> int: ...
    def take(self, rows: Ints) -> Tensor:
        """Host tensors for ``ImageInput.finish``."""
        ...


class TextRows(Protocol):
    """Texts of a pairing, ready to be taken in batches."""

    lengths: Ints
    """tokens of each text, for batches of equal length"""

    def __len__(self) -> int: ...
    def take(self, rows: Ints) -> tuple[Tensor, Tensor]:
        """Padded numbers, or states, and their mask."""
        ...


class Saveable(Protocol):
    """What can be written beside a matcher and read back."""

    kind: ClassVar[str]

    def save(self, folder: Path) -> dict[str, Any]:
        """Write what does not fit into JSON into ``folder`` and return the rest."""
        ...

    @classmethod
    def read(cls, folder: Path, content: Mapping[str, Any]) -> Any:
        """The inverse of ``save``."""
        ...


class ImageInput(Saveable, Protocol):
    """From pictures to what ``Matcher.encode_images`` takes, in a part done once on the host and one on the device."""

    def load(self, visuals: Visuals, track: Track) -> ImageRows:
        """Many images of a collection."""
        ...

    def images(self, images: list[Image.Image]) -> Tensor:
        """A few raw pictures."""
        ...

    def finish(self, rows: Tensor, augment: Augment | None = None) -> Tensor:
        """The device part."""
        ...


class TextInput(Saveable, Protocol):
    """From strings to what ``Matcher.encode_texts`` takes."""

    @property
    def mask_token(self) -> int:
        """Number that hides a word in training."""
        ...

    def __len__(self) -> int:
        """Words or pieces there are."""
        ...

    def load(self, strings: Sequence[str], cache: Path | None = None, track: Track = silent) -> TextRows:
        """Many texts, encoded once; what takes long is kept in ``cache``."""
        ...

    def texts(self, strings: Sequence[str]) -> tuple[Tensor, Tensor]:
        """A few texts: padded numbers and their mask."""
        ...


IMAGE_INPUTS: Mapping[str, type[ImageInput]] = Catalog(
    {
        "pixels": "calligram.features.images.pixels:PixelInput",
        "stored": "calligram.features.images.stored_input:StoredInput",
        "backbone": "calligram.features.images.backbones:BackboneInput",
        "regions": "calligram.features.images.region_input:RegionInput",
        "joined-images": "calligram.features.joined_input:JoinedImageInput",
    }
)
TEXT_INPUTS: Mapping[str, type[TextInput]] = Catalog(
    {
        "words": "calligram.features.texts.vocabulary:Vocabulary",
        "wordpieces": "calligram.features.texts.wordpieces:WordPieces",
        "encoder": "calligram.features.texts.text_encoder:EncoderInput",
        "text-vectors": "calligram.features.texts.text_vectors:TextVectorInput",
        "joined-texts": "calligram.features.joined_input:JoinedTextInput",
        "concepts": "calligram.features.pseudo.concepts:ConceptInput",
    }
)


@dataclass(frozen=True)
class Inputs:
    """Both sides, and what finds the noun phrases of a text where the matcher speaks of regions."""

    images: ImageInput
    texts: TextInput
    chunker: Chunker | None = None

    def to(self, device: torch.device | str) -> Inputs:
        """Move frozen networks, of whole pictures and of texts, to a device."""
        from calligram.features.images.backbones import BackboneInput
        from calligram.features.joined_input import JoinedImageInput
        from calligram.features.texts.text_encoder import EncoderInput

        whole = self.images.whole if isinstance(self.images, JoinedImageInput) else self.images
        if isinstance(whole, BackboneInput):
            whole.backbone.to(device)
        if isinstance(self.texts, EncoderInput):
            self.texts.encoder.to(device)
        return self

    def save(self, folder: Path) -> None:
        """Write into ``folder``: ``inputs.json``, and files beside it where a side needs them."""
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
        """Read what ``save`` wrote."""
        try:
            content = json.loads((folder / "inputs.json").read_text(encoding="utf-8"))
            images, texts = dict(content["images"]), dict(content["texts"])
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"{folder} does not hold a matcher's inputs ({error})") from error
        kinds = images.pop("kind"), texts.pop("kind")
        for side, kind, known in (("image", kinds[0], IMAGE_INPUTS), ("text", kinds[1], TEXT_INPUTS)):
            if kind not in known:
                raise unknown(f"{side} input", kind, known)
        chunker = None
        if "chunker" in content:
            from calligram.features.texts.chunker import Chunker

            chunker = Chunker.read(folder)
        return cls(IMAGE_INPUTS[kinds[0]].read(folder, images), TEXT_INPUTS[kinds[1]].read(folder, texts), chunker)
