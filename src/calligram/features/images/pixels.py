"""Image input from pixels: resized on the host, stored as bytes, augmented and normalised on the device."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from calligram.data.pairing import Visuals
from calligram.data.pictures import decode, worker_threads
from calligram.features.images.resize import (
    REDUCING_GAP,
    Fit,
    decode_pictures,
    least_side,
    reduce_picture,
    resize_picture,
    visible_box,
)
from calligram.features.inputs import ImageInput
from calligram.features.store import FeatureStore, content_key
from calligram.progress import Track, silent
from calligram.records import check_object, choice, integer, list_of, number, record

log = logging.getLogger(__name__)

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

MAX_CACHE_BYTES = 4 << 30
"""decoded images are kept in memory up to this size; larger sets are decoded on demand"""
STORE_PART_IMAGES = 512
"""images in one part of a store of decoded images"""
MIN_STORE_BYTES, MAX_STORE_BYTES = 64 << 20, 16 << 30
"""decoded images of this size together are stored on disk, for all runs; fewer are decoded in a few seconds"""
MAX_STORE_SHARE = 0.25
"""largest share of the free disk for decoded images"""
GREY_WEIGHTS = (0.299, 0.587, 0.114)
"""shares of red, green and blue in the brightness of a pixel (ITU-R BT.601)"""


@dataclass(frozen=True)
class Augment:
    """Random augmentation of training images, drawn on the device from the seed of the step."""

    crop: float = 1.0
    """minimum share of the area that a random crop keeps; 1 keeps the whole image"""
    flip: bool = False
    """mirror half of the images; harmful if captions mention left and right"""
    jitter: float = 0.0
    """maximum relative change of brightness, contrast and saturation"""
    dropout: float = 0.0
    """dropout probability of the entries of stored features; the other entries are scaled up"""
    region_dropout: float = 0.0
    """probability that a stored region or cell is set to zero"""

    def features(self, rows: Tensor) -> Tensor:
        """Augment stored features (N, D) or (N, R, D); matchers ignore a region or cell of zeros."""
        if self.region_dropout and rows.ndim == 3:
            kept = torch.rand(rows.shape[:2], device=rows.device) >= self.region_dropout
            kept[:, 0] |= ~kept.any(1)
            rows = rows * kept.unsqueeze(-1)
        return F.dropout(rows, self.dropout) if self.dropout else rows

    def __call__(self, images: Tensor) -> Tensor:
        """Augment float images (N, 3, H, W) in 0..1."""
        if self.crop < 1 or self.flip:
            images = self._crop_and_flip(images)
        if self.jitter > 0:
            images = self._jitter(images)
        return images

    def _crop_and_flip(self, images: Tensor) -> Tensor:
        n, device = len(images), images.device
        side = torch.empty(n, device=device).uniform_(self.crop, 1).sqrt()
        ratio = torch.empty(n, device=device).uniform_(-1, 1).mul(0.2 * (1 - self.crop)).exp()
        width, height = (side * ratio).clamp(max=1), (side / ratio).clamp(max=1)
        mirror = torch.ones(n, device=device)
        if self.flip:
            mirror = torch.where(torch.rand(n, device=device) < 0.5, -mirror, mirror)
        left = (1 - width) * (2 * torch.rand(n, device=device) - 1)
        top = (1 - height) * (2 * torch.rand(n, device=device) - 1)
        # Each axis by itself: ``F.affine_grid`` multiplies matrices, with the same result in ten times the time.
        rows, columns = images.shape[-2:]
        x = pixel_centres(columns, device) * (width * mirror)[:, None] + left[:, None]
        y = pixel_centres(rows, device) * height[:, None] + top[:, None]
        grid = torch.stack([x[:, None].expand(n, rows, columns), y[:, :, None].expand(n, rows, columns)], dim=-1)
        return F.grid_sample(images, grid.to(images.dtype), padding_mode="border", align_corners=False)

    def _jitter(self, images: Tensor) -> Tensor:
        def factor() -> Tensor:
            change = torch.empty(len(images), 1, 1, 1, device=images.device, dtype=images.dtype)
            return change.uniform_(1 - self.jitter, 1 + self.jitter)

        saturation, contrast, brightness = factor(), factor(), factor()
        # All three are linear, so one weighted sum of a pixel and its grey value does the same. Each operation on all
        # pixels takes as long as its reads and writes of memory, so few of them are quick.
        red, green, blue = images.chunk(3, dim=1)
        grey = (red * GREY_WEIGHTS[0]).add_(green, alpha=GREY_WEIGHTS[1]).add_(blue, alpha=GREY_WEIGHTS[2])
        mean = torch.lerp(grey.mean((1, 2, 3), keepdim=True), images.mean((1, 2, 3), keepdim=True), saturation)
        grey = torch.addcmul((1 - contrast) * mean, grey, (1 - saturation) * contrast).mul_(brightness)
        return torch.addcmul(grey, images, saturation * contrast * brightness).clamp_(0, 1)


def pixel_centres(count: int, device: torch.device) -> Tensor:
    """Centres of ``count`` pixels between -1 and 1."""
    return torch.linspace(-1, 1, count, device=device) * (count - 1) / count


PIXELS_SCHEMA = record(
    {},
    {
        **{"size": integer(1, 10_000), "fit": choice("squash", "crop"), "views": choice("one", "flip", "ten")},
        **{"mean": list_of(number, (3,)), "std": list_of(number, (3,))},
    },
)


@dataclass(frozen=True)
class PixelInput(ImageInput):
    """Resizes images to a square of side ``size`` and normalises them by ``mean`` and ``std``."""

    kind: ClassVar[str] = "pixels"

    size: int = 128
    fit: Fit = "squash"
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.25, 0.25, 0.25)
    views: Literal["one", "flip", "ten"] = "one"
    """views outside training: the image; also its mirror image; or four corners and centre at 7/8 size, mirrored too"""

    def save(self, folder: Path) -> dict[str, Any]:
        """Return all fields."""
        del folder
        return asdict(self)

    @classmethod
    def read(cls, folder: Path, content: Mapping[str, Any]) -> PixelInput:
        """Read what ``save`` returned."""
        check_object(folder / "inputs.json", content, PIXELS_SCHEMA, "restore it from a copy, or train again")
        plain: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in content.items()}
        return cls(**plain)

    @property
    def pixel_input(self) -> PixelInput:
        """This input."""
        return self

    def has_pixels_of(self, other: ImageInput) -> bool:
        """Whether all fields are the same, except for the views outside training."""
        return isinstance(other, PixelInput) and replace(other, views=self.views) == self

    def visible_box(self, width: int, height: int) -> tuple[int, int, int, int]:
        """Return the part of an image that the input covers: left, top, right and bottom in pixels."""
        return visible_box(width, height, self.fit)

    def part_boxes(self, size: tuple[int, int], count: int) -> Floats | None:
        """Return the cells of a square grid, row by row: left, top, right, bottom as shares of the image, (count, 4).

        The cells divide the part of the image that the input covers: the whole image, or its central square. None if
        ``count`` is not a square number.
        """
        side = math.isqrt(count)
        if side * side != count or min(size) < 1:
            return None
        left, top, right, bottom = self.visible_box(*size)
        xs, ys = np.linspace(left, right, side + 1) / size[0], np.linspace(top, bottom, side + 1) / size[1]
        y, x = (axis.ravel() for axis in np.indices((side, side)))
        return np.stack([xs[x], ys[y], xs[x + 1], ys[y + 1]], axis=1).astype(np.float32)

    def reduce(self, image: Image.Image) -> Image.Image:
        """Reduce each side of the image by its own integer factor: the first step of ``resize``."""
        return reduce_picture(image, self.size, self.fit)

    def resize(self, image: Image.Image, reduced: Image.Image | None = None) -> NDArray[np.uint8]:
        """Resize one RGB image to (3, size, size).

        Args:
            reduced: result of ``reduce`` for the image, if it was computed before.
        """
        return resize_picture(image, self.size, self.fit, reduced)

    def decode(self, data: bytes) -> NDArray[np.uint8]:
        """Decode and resize a picture file; large JPEGs are decoded at a part of their size."""
        return self.resize(decode(data, least_side(self.size)))

    def load(
        self, visuals: Visuals, track: Track = silent, budget: int = MAX_CACHE_BYTES
    ) -> PixelRows | StoredPixelRows:
        """Load all images: by ``store`` if there are many, else decoded now up to ``budget`` bytes, else on demand."""
        many = self._bytes(len(visuals)) >= MIN_STORE_BYTES
        if visuals.boxes is None and (many or (visuals.pictures.cache / self._store_name).is_dir()):
            stored = self.store(visuals, track)
            if stored is not None:
                return stored
        return PixelRows(self, visuals, track, budget)

    def store(self, visuals: Visuals, track: Track = silent, budget: int = MAX_STORE_BYTES) -> StoredPixelRows | None:
        """Decode the images that the cache of the collection lacks into it, and read all from there, memory-mapped.

        All runs share the stored images, also on disk and in memory. A run that is killed keeps the parts that it has
        finished. None where the images need more than ``budget`` bytes, or the missing ones more than
        ``MAX_STORE_SHARE`` of the free disk, or nothing can be written.
        """
        fits = self._bytes(len(visuals)) <= budget
        if not len(visuals) or not (fits or (visuals.pictures.cache / self._store_name).is_dir()):
            return None
        try:
            store, keys = self._open_store(visuals)
            if any(key not in store for key in keys) and not (fits and self._fill(store, visuals, keys, track)):
                return None
        except OSError as error:
            log.warning("decoded images are not stored in %s: %s", visuals.pictures.cache, error.strerror or error)
            return None
        return StoredPixelRows(store, keys)

    def _fill(self, store: FeatureStore, visuals: Visuals, keys: list[str], track: Track) -> bool:
        """Decode missing images into the store; return whether there is room for them."""
        with store.fill():
            todo = list({key: row for row, key in enumerate(keys) if key not in store}.items())
            if self._bytes(len(todo)) > MAX_STORE_SHARE * shutil.disk_usage(store.folder).free:
                return False
            rows = np.array([row for _, row in todo], dtype=np.int64)
            decoded = track(decode_pictures(visuals, rows, self.size, self.fit), "decoding images", len(todo))
            for start in range(0, len(todo), STORE_PART_IMAGES):
                part = todo[start : start + STORE_PART_IMAGES]
                store.append([key for key, _ in part], np.stack([next(decoded) for _ in part]))
        return True

    def _bytes(self, images: int) -> int:
        """Size of so many decoded images."""
        return images * 3 * self.size**2

    @property
    def _store_name(self) -> str:
        """The folder of decoded images; views and normalisation do not change them."""
        return f"pixels-{self.fit}-{self.size}"

    def _open_store(self, visuals: Visuals) -> tuple[FeatureStore, list[str]]:
        """Return the store of decoded images, and the key of each image."""
        with worker_threads() as pool:
            keys = list(pool.map(lambda row: content_key(visuals.pictures.read(row)), visuals.rows.tolist()))
        return FeatureStore(
            visuals.pictures.cache / self._store_name, {"pixels": REDUCING_GAP, "jpeg": "reduced"}, np.uint8
        ), keys

    def images(self, images: list[Image.Image]) -> Tensor:
        """Resize raw images to bytes (N, 3, size, size) for ``finish``."""
        return torch.from_numpy(np.stack([self.resize(image) for image in images]))

    def finish(self, pixels: Tensor, augment: Augment | None = None) -> Tensor:
        """Normalise bytes (N, 3, H, W) to floats on their device.

        With ``augment``, one augmented view. Without it, all views: several views are (N, V, 3, H, W), and
        ``mean_over_views`` averages over them.
        """
        images = pixels.float().div_(255)
        if augment is not None:
            images = augment(images)
        # Not ``new_tensor``, which waits for the GPU: the next kernels of a step would be started too late.
        mean, std = (
            torch.tensor(values, dtype=images.dtype).view(1, 3, 1, 1).to(images.device, non_blocking=True)
            for values in (self.mean, self.std)
        )
        images = ((images - mean).div_(std)).contiguous(memory_format=torch.channels_last)
        return images if augment is not None or self.views == "one" else self._all_views(images)

    def _all_views(self, images: Tensor) -> Tensor:
        if self.views == "flip":
            return torch.stack([images, images.flip(-1)], dim=1)
        side = self.size * 7 // 8
        far, middle = self.size - side, (self.size - side) // 2
        crops = [
            images[..., y : y + side, x : x + side]
            for y, x in ((0, 0), (0, far), (far, 0), (far, far), (middle, middle))
        ]
        whole = [F.interpolate(c, size=(self.size, self.size), mode="bilinear", align_corners=False) for c in crops]
        return torch.stack([view for c in whole for view in (c, c.flip(-1))], dim=1)


def mean_over_views(encode: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Encode images (N, 3, H, W), or encode their views (N, V, 3, H, W) and average over the views:
    ten crops (two-branch, Sec. 5.3), or an image and its mirror image (dual-path, Sec. VI-B).
    """
    if images.ndim == 4:
        return encode(images)
    if torch.compiler.is_exporting():  # a graph with the network twice cannot be converted to eight bits
        of_views = encode(images.flatten(0, 1))
        return of_views.view(-1, images.shape[1], *of_views.shape[1:]).mean(1)
    # One view at a time: all ten views of a batch together take ten times the memory and are not faster.
    return torch.stack([encode(view) for view in images.unbind(1)]).mean(0)


class StoredPixelRows:
    """Images as rows of bytes, read from a store."""

    def __init__(self, store: FeatureStore, keys: list[str]) -> None:
        self._store, self._keys = store, keys

    def __len__(self) -> int:
        return len(self._keys)

    def take(self, rows: Ints) -> Tensor:
        """Return these images as bytes (N, 3, size, size)."""
        return torch.from_numpy(self._store.take([self._keys[row] for row in rows.tolist()]))


class PixelRows:
    """Images as rows of bytes, decoded in advance or on demand."""

    def __init__(self, source: PixelInput, visuals: Visuals, track: Track, budget: int) -> None:
        self._source, self._visuals = source, visuals
        self._cache: NDArray[np.uint8] | None = None
        shape = (len(visuals), 3, source.size, source.size)
        if int(np.prod(shape)) <= budget:
            self._cache = np.empty(shape, dtype=np.uint8)
            decoded = decode_pictures(visuals, np.arange(len(visuals)), source.size, source.fit)
            for row, pixels in enumerate(track(decoded, "decoding images", len(visuals))):
                self._cache[row] = pixels  # by numpy: a copy by torch would wake all cores, which are decoding

    def __len__(self) -> int:
        return len(self._visuals)

    def _decode(self, row: int) -> NDArray[np.uint8]:
        return self._source.resize(self._visuals.open(row, least_side(self._source.size)))

    def take(self, rows: Ints) -> Tensor:
        """Return these images as bytes (N, 3, size, size)."""
        if self._cache is not None:
            return torch.from_numpy(self._cache[rows])
        with worker_threads() as pool:
            return torch.from_numpy(np.stack(list(pool.map(self._decode, rows.tolist()))))
