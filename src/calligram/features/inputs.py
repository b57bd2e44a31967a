"""How raw pictures and strings become model input; saved with a matcher, so that a query is prepared as training
was.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from calligram.data.pairing import Visuals
from calligram.errors import UserError, unknown
from calligram.features.pixels import Augment, PixelInput
from calligram.features.stored import StoredInput
from calligram.features.vocabulary import Vocabulary
from calligram.progress import Track

Ints = NDArray[np.int64]


class ImageRows(Protocol):
    """Images of a pairing, ready to be taken in batches."""

    def __len__(self) -> int: ...
    def take(self, rows: Ints) -> Tensor:
        """Host tensors for ``ImageInput.finish``."""
        ...


class ImageInput(Protocol):
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


IMAGE_INPUTS: dict[str, type[PixelInput] | type[StoredInput]] = {"pixels": PixelInput, "stored": StoredInput}


@dataclass(frozen=True)
class Inputs:
    """Both sides."""

    images: PixelInput | StoredInput
    texts: Vocabulary

    def save(self, file: Path) -> None:
        """Write as JSON."""
        kind = next(name for name, cls in IMAGE_INPUTS.items() if isinstance(self.images, cls))
        content = {"images": {"kind": kind, **asdict(self.images)}, "texts": {"kind": "words", **asdict(self.texts)}}
        file.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> Inputs:
        """Read what ``save`` wrote."""
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            images, texts = dict(content["images"]), dict(content["texts"])
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"{file} does not hold a matcher's inputs ({error})") from error
        kind = images.pop("kind")
        if kind not in IMAGE_INPUTS:
            raise unknown("image input", kind, IMAGE_INPUTS)
        plain: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in images.items()}
        return cls(IMAGE_INPUTS[kind](**plain), Vocabulary(tuple(texts["words"]), int(texts["max_words"])))
