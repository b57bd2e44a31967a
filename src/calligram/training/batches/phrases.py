"""Batches of regions and phrases: which triplets and pairs are drawn (two-branch, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from calligram.device import pin_if_large, prepare_ahead
from calligram.errors import UserError
from calligram.features.inputs import ImageRows, Inputs, TextRows
from calligram.losses.contrastive import logistic_loss
from calligram.models.matcher import Encoded, Matcher
from calligram.training.batches.batch import Batch, ExtraPairs, copy_to_device, derived_seed, fits_device
from calligram.training.batches.phrase_pairs import Ints, PhrasePairs, Targets
from calligram.training.distributed import Processes
from calligram.training.objectives.objective import Objective


@dataclass(frozen=True)
class DrawnTriplets:
    """One batch: rows of regions and texts, and their targets in both directions."""

    regions: Ints
    """(I,) rows of regions"""
    texts: Ints
    """(T,) rows of texts"""
    image_target: Targets
    """(I, T): +1 positive, -1 negative, 0 ignored, with regions as anchors"""
    text_target: Targets
    """(T, I): the same with texts as anchors"""
    paired: int | None = None
    """number of regions of positive pairs, which come before the background; None where the order is another one"""

    def triplets(self, top_k: int | None, *, both_ways: bool = True) -> int:
        """Number of triplets, with at most ``top_k`` for each anchor and positive (two-branch, Sec. 4.5).

        Args:
            both_ways: count triplets with region anchors too, not only those with phrase anchors.
        """
        total = 0
        for target in (self.image_target, self.text_target)[0 if both_ways else 1 :]:
            negatives = (target < 0).sum(axis=1)
            kept = negatives if top_k is None else np.minimum(negatives, top_k)
            total += int(((target > 0).sum(axis=1) * kept).sum())
        return total

    @property
    def pairs(self) -> int:
        """Number of positive and negative pairs."""
        return int((self.text_target != 0).sum())


class _Axis:
    """The items along one axis of the targets: named blocks, one after the other."""

    def __init__(self, **blocks: Ints) -> None:
        """Args:
        blocks: items of each block.
        """
        self.items = np.concatenate(list(blocks.values()))
        ends = np.cumsum([len(items) for items in blocks.values()])
        self.places: dict[str, Ints] = {
            name: np.arange(end - len(items), end) for (name, items), end in zip(blocks.items(), ends, strict=True)
        }
        """positions of the items of each block on the axis"""


def draw_triplets(
    pairs: PhrasePairs,
    chosen: Ints,
    rng: np.random.Generator,
    *,
    augment: bool = True,
    extra: ExtraPairs = "none",
    candidates: int | None = None,
) -> DrawnTriplets:
    """Draw triplets for the embedding network from a set of pairs (two-branch, Algorithm 1, upper half).

    The axes of the targets have these blocks, with the step of Algorithm 1 that fills each part::

        regions / texts     pairs                     second texts
        pairs               own pair +1, 3a -1        3c i +1
        second regions      3c ii +1
        background          3b -1

    Step 3a fills ``image_target`` and step 3b ``text_target``. Positive pairs are in both. A region and a phrase have a
    row and a column for each pair, so that an anchor has the negatives of its own pair only. Random extra pairs follow
    the pairs of the set in the first block. The objective selects the K triplets with the highest loss.

    Args:
        chosen: step 1, rows of the pairs; the paper's sets have 100.
        augment: step 2, a random positive region instead of the truth region.
        extra: step 3c, or the same number of triplets of other random pairs (Sec. 4.4).
        candidates: number of random negative regions for each phrase; all when None, as in step 3b.
    """
    regions = _draw_regions(pairs, chosen, rng, augment=augment)
    second_texts, second_regions = _second_positives(pairs, chosen, regions, rng, augment=augment)
    every = chosen
    if extra == "random":
        more = _draw_other_pairs(pairs, chosen, len(second_texts) + len(second_regions), rng)
        every, regions = np.append(chosen, more), np.append(regions, _draw_regions(pairs, more, rng, augment=augment))
    if extra != "neighbours":
        second_texts, second_regions = {}, {}
    background = [_draw_up_to(pairs.negatives[chain], candidates, rng) for chain in pairs.chains[every].tolist()]

    rows = _Axis(pairs=regions, second=_ints(second_regions.values()), background=np.unique(np.concatenate(background)))
    columns = _Axis(pairs=pairs.texts[every], second=_ints(second_texts.values()))
    image_target = np.zeros((len(rows.items), len(columns.items)), dtype=np.int8)
    text_target = np.zeros((len(columns.items), len(rows.items)), dtype=np.int8)
    image_target[: len(every), : len(chosen)] = _text_negatives(pairs, every, chosen)
    shared = rows.items[rows.places["background"]]
    for column, negatives in enumerate(background):
        text_target[column, rows.places["background"][np.searchsorted(shared, negatives)]] = -1
    for at_rows, at_columns in (
        (rows.places["pairs"], columns.places["pairs"]),
        (_ints(second_texts), columns.places["second"]),
        (rows.places["second"], _ints(second_regions)),
    ):
        # A second positive adds triplets to its anchor only: in the other direction it has no negatives.
        image_target[at_rows, at_columns] = 1
        text_target[at_columns, at_rows] = 1
    paired = len(rows.items) - len(shared)
    return DrawnTriplets(rows.items, columns.items, image_target, text_target, paired)


def _ints(numbers: Iterable[int]) -> Ints:
    return np.fromiter(numbers, dtype=np.int64)


def _draw_regions(pairs: PhrasePairs, chosen: Ints, rng: np.random.Generator, *, augment: bool) -> Ints:
    """Step 2: for each pair a random region that matches its truth region; the truth region matches itself."""
    chains = pairs.chains[chosen]
    return _ints(rng.choice(pairs.positives[chain]) for chain in chains.tolist()) if augment else chains


def _draw_other_pairs(pairs: PhrasePairs, chosen: Ints, triplets: int, rng: np.random.Generator) -> Ints:
    """Random pairs outside the set; a pair adds two kinds of triplets, a second positive one kind (Sec. 4.4)."""
    others = np.setdiff1d(np.arange(len(pairs)), chosen)
    return rng.choice(others, min((triplets + 1) // 2, len(others)), replace=False)


def _draw_up_to(regions: Ints, count: int | None, rng: np.random.Generator) -> Ints:
    """Step 3b: all background regions, or some of them."""
    return regions if count is None or len(regions) <= count else rng.choice(regions, count, replace=False)


def _text_negatives(pairs: PhrasePairs, anchors: Ints, chosen: Ints) -> Targets:
    """Step 3a: -1 for every phrase of the set that is not in the anchor's chain, once for each distinct text."""
    texts = pairs.texts[chosen]
    first = np.zeros(len(texts), dtype=bool)
    first[np.unique(texts, return_index=True)[1]] = True
    outside = [~np.isin(texts, pairs.texts_of[chain]) for chain in pairs.chains[anchors].tolist()]
    return np.where(np.array(outside).reshape(len(anchors), len(texts)) & first, -1, 0).astype(np.int8)


def _second_positives(
    pairs: PhrasePairs, chosen: Ints, regions: Ints, rng: np.random.Generator, *, augment: bool
) -> tuple[dict[int, int], dict[int, int]]:
    """Step 3c: a second text and a second region, by the position of their pair in the set.

    A pair gets a second text (i) if its region has one text in the set, and a second region (ii) if its text has one
    region in the set, where another one exists.
    """
    texts, chains = pairs.texts[chosen], pairs.chains[chosen]
    second_texts: dict[int, int] = {}
    second_regions: dict[int, int] = {}
    for place, (region, text, chain) in enumerate(zip(regions.tolist(), texts.tolist(), chains.tolist(), strict=True)):
        other_texts = pairs.texts_of[chain][pairs.texts_of[chain] != text]
        if len(other_texts) and len(np.unique(texts[regions == region])) < 2:
            second_texts[place] = int(rng.choice(other_texts))
        other_regions = pairs.positives[chain][pairs.positives[chain] != region]
        if augment and len(other_regions) and len(np.unique(regions[texts == text])) < 2:
            second_regions[place] = int(rng.choice(other_regions))
    return second_texts, second_regions


def draw_pairs(pairs: PhrasePairs, chosen: Ints, rng: np.random.Generator, *, augment: bool = True) -> DrawnTriplets:
    """Draw pairs for the similarity network from a set of pairs (two-branch, Algorithm 1, lower half).

    With ``augment`` every region that matches the truth region is a positive of the phrase, otherwise only the truth
    region. Each positive comes with one random negative region of the same image. Phrases of an image without negatives
    are left out, so that there are as many positives as negatives.
    """
    rows: list[Ints] = []
    signs: list[tuple[int, int, int]] = []
    total = 0
    for column, chain in enumerate(pairs.chains[chosen].tolist()):
        matching = pairs.positives[chain] if augment else np.array([chain])
        if not len(pairs.negatives[chain]):
            continue
        rows += [matching, rng.choice(pairs.negatives[chain], len(matching))]
        signs.append((column, total, len(matching)))
        total += 2 * len(matching)
    text_target = np.zeros((len(chosen), total), dtype=np.int8)
    for column, start, count in signs:
        text_target[column, start : start + count] = 1
        text_target[column, start + count : start + 2 * count] = -1
    regions = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
    return DrawnTriplets(regions, pairs.texts[chosen], np.ascontiguousarray(text_target.T), text_target)


DrawFunction = Callable[[PhrasePairs, Ints, np.random.Generator], DrawnTriplets]


class PhraseBatches:
    """All pairs of a split, shuffled into sets; a batch is drawn from each set (two-branch, Algorithm 1)."""

    def __init__(
        self,
        pairs: PhrasePairs,
        inputs: Inputs,
        truth: ImageRows,
        proposals: ImageRows,
        texts: TextRows,
        draw: DrawFunction,
        *,
        seed: int,
        size: int = 100,
        sets: int | None = None,
        device: torch.device | str = "cpu",
        processes: Processes | None = None,
        keep_on_device: bool | None = None,
    ) -> None:
        """Args:
        truth: features of the truth region of each chain.
        proposals: features of the proposals, in the order of ``pairs``.
        texts: the strings of ``pairs``.
        draw: ``draw_triplets`` or ``draw_pairs``, with its options.
        size: number of pairs in a set.
        sets: number of sets in an epoch; all when None.
        keep_on_device: whether the features of all regions are copied to the device first; None for features that fit
            into the memory of a GPU. A batch with all candidates of step 3b has 30,000 regions.
        """
        if len(pairs) < 2:
            raise UserError(f"training needs at least 2 pairs of a region and a phrase, this split has {len(pairs)}")
        self.pairs, self.inputs, self.draw, self.seed = pairs, inputs, draw, seed
        self._regions, self._texts = _Regions(truth, proposals), texts
        self.size = min(size, len(pairs))
        self._sets = len(pairs) // self.size if sets is None else min(sets, len(pairs) // self.size)
        self.device, self.processes = torch.device(device), processes or Processes()
        fits = fits_device(self._regions, self.device) if keep_on_device is None else keep_on_device
        self._device_regions = copy_to_device(self._regions, self.device) if fits else None
        self._neighbourhoods = True

    def without_neighbourhoods(self) -> PhraseBatches:
        """The same batches without ``Batch.image_neighbours`` and ``Batch.text_neighbours``, which take time."""
        other = copy(self)
        other._neighbourhoods = False
        return other

    def __len__(self) -> int:
        """Sets in an epoch; pairs that do not fill a set are left out until the next shuffle."""
        return self._sets

    def drawn(self, number: int, step: int) -> DrawnTriplets:
        """Draw the rows and targets of one step."""
        order = np.random.default_rng(derived_seed(self.seed, "sets", number)).permutation(len(self.pairs))
        chosen = order[step * self.size : (step + 1) * self.size]
        return self.draw(self.pairs, chosen, np.random.default_rng(derived_seed(self.seed, "draws", number, step)))

    def mean_size(self, count: Callable[[DrawnTriplets], int], sets: int = 20) -> float:
        """Mean number of triplets or pairs in a batch, over the first sets."""
        return float(np.mean([count(self.drawn(0, step)) for step in range(min(sets, len(self)))]))

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Batches of an epoch from step ``start`` on; the next one is prepared in the background."""

        def prepare(step: int) -> Batch:
            host = self._host(number, step)
            return host.map_tensors(pin_if_large) if self.device.type == "cuda" else host

        for host in prepare_ahead(prepare, range(start, len(self))):
            batch = host.map_tensors(lambda tensor: tensor.to(self.device, non_blocking=True))
            rows = batch.images if self._device_regions is None else self._device_regions[batch.images]
            yield replace(batch, images=self.inputs.images.finish(rows))

    def _host(self, number: int, step: int) -> Batch:
        drawn = self.drawn(number, step)
        words, mask = self._texts.take(self.processes.share(drawn.texts))
        mine = self.processes.share(drawn.regions)
        host = Batch(
            self._regions.take(mine) if self._device_regions is None else torch.from_numpy(mine),
            words,
            mask,
            torch.from_numpy(drawn.image_target),
            torch.from_numpy(drawn.text_target),
            torch.from_numpy(self.pairs.chain_of_region[drawn.regions]),
            torch.from_numpy(self.pairs.chain_of_region[drawn.regions[drawn.text_target.argmax(axis=1)]]),
        )
        if drawn.paired is None or not self._neighbourhoods:
            return host
        paired, background = np.split(drawn.regions, [drawn.paired])
        images, texts = self.pairs.neighbourhoods(paired, background, drawn.texts)
        return replace(host, image_neighbours=torch.from_numpy(images), text_neighbours=torch.from_numpy(texts))

    def take(self, regions: Ints) -> Tensor:
        """Features of regions, by their numbers in ``PhrasePairs``."""
        return self._regions.take(regions)


class _Regions:
    """Features of all regions by their numbers in ``PhrasePairs``: truth regions first, then proposals."""

    def __init__(self, truth: ImageRows, proposals: ImageRows) -> None:
        self._truth, self._proposals = truth, proposals

    def __len__(self) -> int:
        return len(self._truth) + len(self._proposals)

    def take(self, rows: Ints) -> Tensor:
        """Return the features of these regions."""
        count = len(self._truth)
        is_truth = rows < count
        truth, proposals = self._truth.take(rows[is_truth]), self._proposals.take(rows[~is_truth] - count)
        found = proposals.new_empty((len(rows), *proposals.shape[1:]))
        found.index_copy_(0, torch.from_numpy(np.flatnonzero(is_truth)), truth)
        found.index_copy_(0, torch.from_numpy(np.flatnonzero(~is_truth)), proposals)
        return found


class DrawnPairsObjective(Objective):
    """Logistic regression over exactly the pairs of a batch, which has as many positives as negatives (two-branch, Eq.
    7).

    Departs from the paper's sum: divided by the number of pairs.
    """

    def terms(self, matcher: Matcher, batch: Batch, images: Encoded, texts: Encoded) -> dict[str, Tensor]:
        """Return one term."""
        of_text, of_image = batch.text_target.nonzero(as_tuple=True)
        scores = matcher.score_pairs(images.rows(of_image), texts.rows(of_text))
        return {"logistic": logistic_loss(scores, batch.text_target[of_text, of_image]) / max(1, len(of_text))}
