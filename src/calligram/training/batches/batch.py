"""Batches of matching pairs: which pairs share a batch, and their distinct images and texts with targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calligram.data.matches import Matches
from calligram.data.pairing import Pairing
from calligram.device import GRAPH_DEVICE_TYPE, pin_if_large, prepare_ahead, seed_random_numbers
from calligram.errors import UserError
from calligram.features.images.pixels import Augment
from calligram.features.inputs import ImageRows, Inputs
from calligram.files import text_hash
from calligram.progress import Track, silent
from calligram.training.cuda_graphs import pad_words
from calligram.training.distributed import Processes

DEVICE_BYTES, DEVICE_SHARE = 8 << 30, 0.25
"""training images and regions are kept in GPU memory up to this size, and up to this share of its free memory"""
DEVICE_PART_IMAGES = 512
"""images that are copied into GPU memory at once"""
DRAWN_MULTIPLE, PAIRED_MULTIPLE = 64, 8
"""on a GPU, the numbers of items of a batch with drawn negatives, and of items in its pairs, are rounded up to a
multiple, so that few shapes occur and CUDA graphs can be captured for them"""


def derived_seed(*parts: int | str) -> int:
    """Derive a seed from its parts: reproducible on all machines, and unrelated for different parts.

    All randomness of a run is drawn from (seed, stage, epoch, step), so that a resumed run needs no saved random state.
    """
    return int(text_hash("/".join(map(str, parts)), 8), 16) >> 1


class PairSampler:
    """Batches of distinct images, each with ``texts`` of its texts (two-branch, Sec. 5.1, with one).

    An epoch goes over the images in rounds. Each round has an image at most once, with texts that it has not had
    before, until every matching pair has come once. Images with more texts than others remain for late, small rounds.
    These are joined, so a batch there may contain an image twice. ``Batches`` encodes each distinct image and text
    once.
    """

    def __init__(self, matches: Matches, batch: int, seed: int, *, texts: int = 1, per_image: bool = False) -> None:
        """Args:
        batch: number of images in a batch, over all processes.
        texts: number of texts that come with an image.
        per_image: an epoch is one round over the images instead of all pairs.
        """
        if batch < 2:
            raise UserError(f"batch must be at least 2 images, got {batch}")
        if texts < 1:
            raise UserError(f"texts per image must be at least 1, got {texts}")
        self.matches, self.batch, self.seed, self.texts, self.per_image = matches, batch, seed, texts, per_image
        counts = matches.counts()[0]
        self._turns = int((counts > 0).sum() if per_image else (-(-counts // texts)).sum())
        if len(matches) < 2:
            raise UserError(f"training needs at least 2 matching pairs, this split has {len(matches)}")
        images, distinct = (int((count > 0).sum()) for count in matches.counts())
        if min(images, distinct) < 2:
            raise UserError(
                f"training needs at least 2 images and 2 different texts; this split has {images} and {distinct}"
            )

    def __len__(self) -> int:
        """Batches in an epoch. A last batch of less than half the size is left out; the next epoch has another
        order.
        """
        full, rest = divmod(self._turns, self.batch)
        return max(1, full + (rest >= self.batch / 2))

    def epoch(self, number: int) -> list[Ints]:
        """Batches of one epoch, each (N, 2) rows of images and texts."""
        rng = np.random.default_rng(derived_seed(self.seed, "batches", number))
        visual, text = self.matches.pairs()
        shuffled = rng.permutation(len(visual))
        visual, text = visual[shuffled], text[shuffled]
        round_of = _rank_within_label(visual, self.matches.shape[0]) // self.texts
        if self.per_image:
            first = round_of == 0
            visual, text, round_of = visual[first], text[first], round_of[first]
        # One random key for each (round, image), shared by the texts that come together.
        images = self.matches.shape[0]
        turn, inverse = np.unique(round_of * images + visual, return_inverse=True)
        order = np.lexsort((rng.random(len(turn)), turn // images))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        batch_of = place[inverse] // self.batch
        pairs = np.stack([visual, text], axis=1)
        return [pairs[batch_of == i] for i in range(len(self))]


def _rank_within_label(labels: Ints, count: int) -> Ints:
    """For each entry, the number of earlier entries with the same label."""
    by_label = np.argsort(labels, kind="stable")
    counts = np.bincount(labels, minlength=count)
    place = np.empty(len(labels), dtype=np.int64)
    place[by_label] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return place


ExtraPairs = Literal["none", "neighbours", "random"]


class NeighbourhoodSampler(PairSampler):
    """Batches of ``PairSampler`` with extra pairs, so that an anchor has several positives (two-branch, Sec. 3.2.3).

    ``neighbours`` adds a second text for every image with one text in the batch, and a second image for every text with
    one image, where there are any. ``random`` is the control (Sec. 4.4): the same number of extra pairs of other
    images. An epoch has the same number of batches in all cases.
    """

    def __init__(
        self, matches: Matches, batch: int, seed: int, *, extra: ExtraPairs, texts: int = 1, per_image: bool = False
    ) -> None:
        super().__init__(matches, batch, seed, texts=texts, per_image=per_image)
        self.extra = extra
        self._transposed = matches.T
        self._all = np.stack(matches.pairs(), axis=1)

    def epoch(self, number: int) -> list[Ints]:
        """Batches of one epoch, each (N, 2) rows of images and texts."""
        batches = super().epoch(number)
        if self.extra == "none":
            return batches
        rng = np.random.default_rng(derived_seed(self.seed, "neighbours", number))
        return [np.concatenate([pairs, self._more(pairs, rng)]) for pairs in batches]

    def _more(self, pairs: Ints, rng: np.random.Generator) -> Ints:
        second_texts = second_partners(pairs, self.matches, rng)
        second_images = second_partners(pairs[:, ::-1], self._transposed, rng)[:, ::-1]
        more = np.concatenate([second_texts, second_images])
        if self.extra == "neighbours":
            return more
        key = np.array([self.matches.shape[1], 1])
        others = self._all[~np.isin(self._all @ key, pairs @ key)]
        return others[rng.choice(len(others), min(len(more), len(others)), replace=False)]


def second_partners(pairs: Ints, matches: Matches, rng: np.random.Generator) -> Ints:
    """Draw a second partner for every item of the first column that is in one pair of the batch and has several
    partners.

    Args:
        pairs: (N, 2) matching items, as rows and columns of ``matches``.
    """
    items, first, count = np.unique(pairs[:, 0], return_index=True, return_counts=True)
    rows, columns = matches.pairs()
    starts = np.searchsorted(rows, np.arange(matches.shape[0] + 1))
    partners = starts[items + 1] - starts[items]
    wanted = (count == 1) & (partners > 1)
    items, first, partners = items[wanted], first[wanted], partners[wanted]
    # Pairs are sorted by item and partner, so bisection finds the rank of a partner.
    width = matches.shape[1]
    place = np.searchsorted(rows * width + columns, items * width + pairs[first, 1]) - starts[items]
    other = (place + rng.integers(1, partners)) % partners
    return np.stack([items, columns[starts[items] + other]], axis=1)


Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """One row per distinct item. With several processes, the items are the share of this process, and the targets are
    those of the whole batch.
    """

    images: Tensor
    texts: Tensor
    text_mask: Tensor
    image_target: Tensor
    """(I, T): +1 match, -1 negative, 0 ignored"""
    text_target: Tensor
    """(T, I): the same with texts as anchors"""
    image_groups: Tensor
    """(I,) class labels: items that are connected by matches share one"""
    text_groups: Tensor
    """(T,) class labels of texts"""
    drawn: Tensor = field(default_factory=lambda: torch.empty(0, 2, dtype=torch.int64))
    """(N, 2k) rows that a sampler drew, images and texts in turn: a matching pair, then its negatives; -1 for none"""
    paired_counts: tuple[int, int] | None = None
    """number of images and of texts that contain those in matching pairs. They come first; drawn negatives follow, with
    target 0. None for all"""
    image_rows: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """(I,) rows of the images in the pairing"""
    text_rows: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """(T,) rows of the texts in the pairing"""
    matching: Tensor | None = None
    """(P, 2) rows of all matching images and texts; None to find them in the targets, which waits for the device"""
    image_neighbours: Tensor | None = None
    """(A, I) neighbourhoods of the first A images: +1 neighbour, -1 outsider, 0 ignored; None to take them from the
    targets, where every item has one row"""
    text_neighbours: Tensor | None = None
    """(B, T) neighbourhoods of the first B texts"""
    text_lengths: tuple[int, ...] = ()
    """number of tokens of each text; empty if they are not known"""

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Apply a function to every tensor."""
        changed: dict[str, Any] = {k: change(v) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **changed)


class BatchSource(Protocol):
    """A source of batches whose epochs can start at any step."""

    def __len__(self) -> int:
        """Batches in an epoch."""
        ...

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Batches of an epoch from step ``start`` on, the same for the same arguments."""
        ...


class Batches:
    """Batches of a pairing; decoding and padding run one batch ahead of the device."""

    def __init__(
        self,
        pairing: Pairing,
        inputs: Inputs,
        sampler: PairSampler,
        *,
        augment: Augment | None = None,
        word_dropout: float = 0.0,
        device: torch.device | str = "cpu",
        processes: Processes | None = None,
        ignore_also_true: bool = False,
        classes: tuple[Ints, Ints] | None = None,
        keep_on_device: bool | None = None,
        track: Track = silent,
    ) -> None:
        """Args:
        word_dropout: share of words that are replaced by the mask token.
        ignore_also_true: pairs that are true but not annotated are neither positives nor negatives.
        classes: labels of all images and texts instead of the groups that matches connect; -1 for none.
        keep_on_device: whether all images are copied to the device first, so that batches copy none; None for
            images that fit into the memory of a GPU.
        """
        self.pairing, self.inputs, self.sampler, self.augment = pairing, inputs, sampler, augment
        self.word_dropout = word_dropout
        self._mask_token = inputs.texts.mask_token if word_dropout else 0  # read once: it is slow for some tokenizers
        self.device, self.processes = torch.device(device), processes or Processes()
        self._also_true = pairing.also_true if ignore_also_true else None
        self._images = inputs.images.load(pairing.visuals, track)
        fits = fits_device(self._images, self.device) if keep_on_device is None else keep_on_device
        self._device_images = copy_to_device(self._images, self.device) if fits else None
        self._texts = inputs.texts.load(pairing.texts.strings, pairing.visuals.pictures.cache, track)
        self._image_groups, self._text_groups = pairing.matches.groups() if classes is None else classes

    def __len__(self) -> int:
        return len(self.sampler)

    def with_sampler(self, sampler: PairSampler) -> Batches:
        """Batches of another sampler over the same loaded items."""
        other = copy(self)
        other.sampler = sampler
        return other

    def with_augment(self, augment: Augment | None) -> Batches:
        """Batches with another augmentation of the same loaded items."""
        other = copy(self)
        other.augment = augment
        return other

    @property
    def groups(self) -> int:
        """Number of classes of ``Batch.image_groups`` and ``Batch.text_groups``."""
        return int(max(self._image_groups.max(initial=-1), self._text_groups.max(initial=-1))) + 1

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Batches of one epoch from step ``start`` on."""
        drawn = self.sampler.epoch(number)[start:]
        for step, host in enumerate(prepare_ahead(self._host, drawn), start):
            yield self._on_device(host, derived_seed(self.sampler.seed, "augment", number, step))

    def _host(self, pairs: Ints) -> Batch:
        images, texts = (np.unique(pairs[:, side]) for side in (0, 1))
        target = self.pairing.matches.target(images, texts)
        if self._also_true is not None:
            target[(target < 0) & (self._also_true.target(images, texts) > 0)] = 0
        paired = len(images), len(texts)
        if pairs.shape[1] > 2:
            images, texts = (_append_drawn(rows, pairs[:, side::2]) for side, rows in ((0, images), (1, texts)))
            more = [0, 0]
            if self.device.type == GRAPH_DEVICE_TYPE and self.processes.count == 1:
                images, texts = _repeat_rows(images), _repeat_rows(texts)
                # The items that follow have target 0, so that some of them among those of pairs change nothing.
                more = [-count % PAIRED_MULTIPLE for count in paired]
            target = np.pad(target, [(0, len(images) - paired[0]), (0, len(texts) - paired[1])])
            paired = min(paired[0] + more[0], len(images)), min(paired[1] + more[1], len(texts))
        drawn = np.stack([_positions(pairs[:, c], texts if c % 2 else images) for c in range(pairs.shape[1])], axis=1)
        mine_images, mine_texts = self.processes.share(images), self.processes.share(texts)
        words, mask = self._texts.take(mine_texts)
        if self.device.type == GRAPH_DEVICE_TYPE:
            words, mask = pad_words(words, mask)
        host = Batch(
            self._images.take(mine_images) if self._device_images is None else torch.from_numpy(mine_images),
            words,
            mask,
            torch.from_numpy(target),
            torch.from_numpy(np.ascontiguousarray(target.T)),
            torch.from_numpy(_labels(self._image_groups, images)),
            torch.from_numpy(_labels(self._text_groups, texts)),
            torch.from_numpy(drawn),
            paired,
            torch.from_numpy(images),
            torch.from_numpy(texts),
            torch.from_numpy(np.argwhere(target > 0)),
            text_lengths=tuple(self._texts.lengths[mine_texts].tolist()),
        )
        return host.map_tensors(pin_if_large) if self.device.type == "cuda" else host

    def _on_device(self, host: Batch, seed: int) -> Batch:
        batch = host.map_tensors(lambda tensor: tensor.to(self.device, non_blocking=True))
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            seed_random_numbers(derived_seed(seed, self.processes.rank), self.device)
            rows = batch.images if self._device_images is None else self._device_images[batch.images]
            images = self.inputs.images.finish(rows, self.augment)
            texts = self._drop_words(batch.texts, batch.text_mask) if self.word_dropout else batch.texts
        return replace(batch, images=images, texts=texts)

    def _drop_words(self, texts: Tensor, mask: Tensor) -> Tensor:
        """Replace random words by the mask token; the first and the last of a text mark its ends and stay."""
        inner = mask.clone()
        inner[:, 0] = False
        inner[torch.arange(len(mask), device=mask.device), mask.sum(1) - 1] = False
        hidden = inner & (torch.rand(texts.shape, device=texts.device) < self.word_dropout)
        return texts.masked_fill(hidden, self._mask_token)


def fits_device(images: ImageRows, device: torch.device) -> bool:
    """Whether all images fit into the memory of a GPU, next to a matcher; False for a CPU."""
    if device.type != "cuda" or not len(images):
        return False
    size = len(images) * images.take(np.zeros(1, dtype=np.int64)).nbytes
    return size <= min(DEVICE_BYTES, DEVICE_SHARE * torch.cuda.mem_get_info(device)[0])


def copy_to_device(images: ImageRows, device: torch.device) -> Tensor | None:
    """Return all images as one tensor on a device; None for images of different shapes."""
    found: Tensor | None = None
    for start in range(0, len(images), DEVICE_PART_IMAGES):
        part = images.take(np.arange(start, min(start + DEVICE_PART_IMAGES, len(images))))
        if found is None:
            found = torch.empty((len(images), *part.shape[1:]), dtype=part.dtype, device=device)
        if part.shape[1:] != found.shape[1:]:
            return None
        found[start : start + len(part)] = part.to(device)
    return found


def _append_drawn(own: Ints, drawn: Ints) -> Ints:
    """Distinct rows: first those of pairs, then the drawn ones; -1 is none."""
    others = np.setdiff1d(drawn, own)
    return np.concatenate([own, others[others >= 0]])


def _repeat_rows(rows: Ints) -> Ints:
    """Repeat the first rows at the end, up to a multiple. No drawn row is one of them, and they have target 0.

    Only statistics of batch normalisation count them, and distillation leaves them out.
    """
    return np.resize(rows, len(rows) + -len(rows) % DRAWN_MULTIPLE)


def _labels(groups: Ints, rows: Ints) -> Ints:
    """Class labels of rows; -1 for repeated rows at the end."""
    found = groups[rows]
    found[len(np.unique(rows)) :] = -1
    return found


def _positions(rows: Ints, items: Ints) -> Ints:
    """First position of each row among the ``items``; -1 stays -1."""
    order = np.argsort(items, kind="stable")
    place = order[np.searchsorted(items, np.maximum(rows, items.min()), sorter=order)]
    return np.where(rows >= 0, place, -1)
