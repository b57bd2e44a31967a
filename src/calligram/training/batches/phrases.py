"""Batches of regions and phrases: which triplets and pairs are drawn (two-branch, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calligram.data.boxes import iou
from calligram.data.grounding import GroundedPhrases, ImageBoxes
from calligram.device import Processes
from calligram.errors import UserError
from calligram.features.inputs import ImageRows, Inputs, TextRows
from calligram.losses.contrastive import logistic_loss
from calligram.models.matcher import Matcher
from calligram.text import caption_key
from calligram.training.batches.batch import Batch, ExtraPairs, derived_seed
from calligram.training.objectives.objective import Objective

Ints = NDArray[np.int64]
Targets = NDArray[np.int8]

POSITIVE_IOU = 0.7
"""a proposal with at least this IoU with a truth region is a positive; the paper's value"""
NEGATIVE_IOU = 0.3
"""a proposal with a smaller IoU with a truth region is a negative; the paper's value"""


@dataclass(frozen=True)
class PhrasePairs:
    """Every pair of a truth region and a phrase of a split, with the proposals that overlap it.

    Regions are numbered: first the truth region of each chain, then the proposals. Equal phrases are one text, so that
    "a man" is never a negative of itself. A phrase that occurs twice for one region is one pair.
    """

    chains: Ints
    """(P,) chain of each pair, which is also its truth region"""
    texts: Ints
    """(P,) text of each pair"""
    texts_of: tuple[Ints, ...]
    """texts of each chain"""
    positives: tuple[Ints, ...]
    """for each chain its truth region, then the proposals that match it"""
    negatives: tuple[Ints, ...]
    """for each chain the proposals of its image that are background"""
    chain_of_region: Ints
    """the chain that a region matches best; a region that matches none has a unique number"""
    strings: tuple[str, ...]
    """the distinct texts"""

    def __len__(self) -> int:
        return len(self.chains)

    @classmethod
    def of(
        cls,
        grounded: GroundedPhrases,
        strings: Sequence[str],
        proposals: ImageBoxes,
        match: float = POSITIVE_IOU,
        background: float = NEGATIVE_IOU,
    ) -> PhrasePairs:
        """Args:
        strings: words of each phrase of ``grounded``.
        proposals: region proposals of the same images.
        match: smallest IoU with a truth region of a positive.
        background: IoU with a truth region below which a proposal is negative.
        """
        numbers: dict[str, int] = {}
        text = [numbers.setdefault(caption_key(s), len(numbers)) for s in strings]
        pairs = np.unique(np.stack([grounded.chains, np.array(text, dtype=np.int64)], axis=1), axis=0)
        chains, texts = pairs[:, 0], pairs[:, 1]
        count = len(grounded.chain_boxes)
        starts = np.searchsorted(chains, np.arange(1, count))
        positives, negatives, best = _label_proposals(grounded.chain_boxes, proposals, match, background)
        return cls(chains, texts, tuple(np.split(texts, starts)), positives, negatives, best, tuple(numbers))


def _label_proposals(
    truth: ImageBoxes, proposals: ImageBoxes, match: float, background: float
) -> tuple[tuple[Ints, ...], tuple[Ints, ...], Ints]:
    """Positives and negatives of each truth region, and the chain of every region."""
    count = len(truth)
    positives, negatives = [np.zeros(0, dtype=np.int64)] * count, [np.zeros(0, dtype=np.int64)] * count
    chain_of_region = np.concatenate([np.arange(count), count + np.arange(len(proposals))])
    for image in np.unique(truth.images).tolist():
        chains, near = truth.rows_of_image(image), proposals.rows_of_image(image)
        overlap = iou(truth.boxes[chains], proposals.boxes[near])
        for row, chain in enumerate(chains.tolist()):
            positives[chain] = np.concatenate([[chain], count + near[overlap[row] >= match]])
            negatives[chain] = count + near[overlap[row] < background]
        if len(near):
            matched = overlap.max(axis=0) >= match
            chain_of_region[count + near[matched]] = chains[overlap.argmax(axis=0)[matched]]
    return tuple(positives), tuple(negatives), chain_of_region


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

    The first rows and columns of the targets are the pairs, one row and one column for each pair, so that an anchor has
    the negatives of its own pair only. The objective selects the K triplets with the highest loss.

    Args:
        chosen: rows of the pairs; the paper's sets have 100.
        augment: step 2, a random positive region instead of the truth region.
        extra: step 3c, or the same number of triplets of other random pairs (Sec. 4.4).
        candidates: number of random negative regions for each phrase; all when None.
    """
    regions = _draw_positive_regions(pairs, chosen, rng) if augment else pairs.chains[chosen]
    second_texts, second_regions = _second_positives(pairs, chosen, regions, rng, augment=augment)
    further = np.zeros(0, dtype=np.int64)
    if extra == "random":
        others = np.setdiff1d(np.arange(len(pairs)), chosen)
        wanted = ((second_texts >= 0).sum() + (second_regions >= 0).sum() + 1) // 2
        further = rng.choice(others, min(int(wanted), len(others)), replace=False)
    if extra != "neighbours":
        second_texts, second_regions = np.full_like(second_texts, -1), np.full_like(second_regions, -1)
    every = np.concatenate([chosen, further])
    anchors = np.concatenate(
        [regions, _draw_positive_regions(pairs, further, rng) if augment else pairs.chains[further]]
    )
    background = [_draw_up_to(pairs.negatives[c], candidates, rng) for c in pairs.chains[every].tolist()]
    more = np.flatnonzero(second_regions >= 0)
    shared = np.unique(np.concatenate(background)) if background else np.zeros(0, dtype=np.int64)
    rows = np.concatenate([anchors, second_regions[more], shared])
    also = np.flatnonzero(second_texts >= 0)
    columns = np.concatenate([pairs.texts[every], second_texts[also]])
    image_target = np.zeros((len(rows), len(columns)), dtype=np.int8)
    text_target = np.zeros((len(columns), len(rows)), dtype=np.int8)
    image_target[: len(every), : len(chosen)] = _text_negatives(pairs, every, chosen)
    for row, found in enumerate(background):
        text_target[row, len(anchors) + len(more) + np.searchsorted(shared, found)] = -1
    # A second positive adds triplets to its anchor. The other direction is marked too, for the neighbourhoods. It adds
    # no triplets there, because a row without negatives has none.
    own = np.arange(len(every))
    at_rows = np.concatenate([own, also, len(every) + np.arange(len(more))])
    at_columns = np.concatenate([own, len(every) + np.arange(len(also)), more])
    image_target[at_rows, at_columns] = 1
    text_target[at_columns, at_rows] = 1
    return DrawnTriplets(rows, columns, image_target, text_target)


def _draw_positive_regions(pairs: PhrasePairs, chosen: Ints, rng: np.random.Generator) -> Ints:
    """Step 2: for each pair a random region that matches its truth region; the truth region matches itself."""
    found = (rng.choice(pairs.positives[chain]) for chain in pairs.chains[chosen].tolist())
    return np.fromiter(found, dtype=np.int64, count=len(chosen))


def _draw_up_to(regions: Ints, count: int | None, rng: np.random.Generator) -> Ints:
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
) -> tuple[Ints, Ints]:
    """Step 3c: for each pair a second text and a second region, if its region or its text has one partner only.

    -1 if none is needed or none exists. Pairs that share their region, or their text, need none.
    """
    texts, chains = pairs.texts[chosen], pairs.chains[chosen]
    second_texts, second_regions = np.full(len(chosen), -1, dtype=np.int64), np.full(len(chosen), -1, dtype=np.int64)
    for place, (region, text, chain) in enumerate(zip(regions.tolist(), texts.tolist(), chains.tolist(), strict=True)):
        if len(np.unique(texts[regions == region])) < 2:
            second_texts[place] = _draw_other(pairs.texts_of[chain], text, rng)
        if augment and len(np.unique(regions[texts == text])) < 2:
            second_regions[place] = _draw_other(pairs.positives[chain], region, rng)
    return second_texts, second_regions


def _draw_other(items: Ints, item: int, rng: np.random.Generator) -> int:
    """Draw one of the items other than ``item``; -1 if there is none."""
    others = items[items != item]
    return int(rng.choice(others)) if len(others) else -1


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
    ) -> None:
        """Args:
        truth: features of the truth region of each chain.
        proposals: features of the proposals, in the order of ``pairs``.
        texts: the strings of ``pairs``.
        draw: ``draw_triplets`` or ``draw_pairs``, with its options.
        size: number of pairs in a set.
        sets: number of sets in an epoch; all when None.
        """
        if len(pairs) < 2:
            raise UserError(f"training needs at least 2 pairs of a region and a phrase, this split has {len(pairs)}")
        self.pairs, self.inputs, self.draw, self.seed = pairs, inputs, draw, seed
        self._truth, self._proposals, self._texts = truth, proposals, texts
        self.size = min(size, len(pairs))
        self._sets = len(pairs) // self.size if sets is None else min(sets, len(pairs) // self.size)
        self.device, self.processes = torch.device(device), processes or Processes()

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
        with ThreadPoolExecutor(1) as ahead:
            coming = ahead.submit(self._host, number, start) if start < len(self) else None
            for step in range(start, len(self)):
                assert coming is not None
                host = coming.result()
                coming = ahead.submit(self._host, number, step + 1) if step + 1 < len(self) else None
                yield host.map_tensors(lambda tensor: tensor.to(self.device))

    def _host(self, number: int, step: int) -> Batch:
        drawn = self.drawn(number, step)
        words, mask = self._texts.take(self.processes.share(drawn.texts))
        chain_of_text = self.pairs.chain_of_region[drawn.regions[drawn.text_target.argmax(axis=1)]]
        return Batch(
            self.inputs.images.finish(self.take(self.processes.share(drawn.regions))),
            words,
            mask,
            torch.from_numpy(drawn.image_target),
            torch.from_numpy(drawn.text_target),
            torch.from_numpy(self.pairs.chain_of_region[drawn.regions]),
            torch.from_numpy(chain_of_text),
        )

    def take(self, regions: Ints) -> Tensor:
        """Features of regions, by their numbers in ``PhrasePairs``."""
        count = len(self._truth)
        is_truth = regions < count
        one, two = self._truth.take(regions[is_truth]), self._proposals.take(regions[~is_truth] - count)
        order = np.argsort(np.concatenate([np.flatnonzero(is_truth), np.flatnonzero(~is_truth)]))
        return torch.cat([one, two])[torch.from_numpy(order)]


class DrawnPairsObjective(Objective):
    """Logistic regression over exactly the pairs of a batch, which has as many positives as negatives (two-branch, Eq.
    7).

    Departs from the paper's sum: divided by the number of pairs.
    """

    def forward(self, matcher: Matcher, batch: Batch) -> dict[str, Tensor]:
        """Return one term."""
        images, texts = self.encode(matcher, batch)
        of_text, of_image = batch.text_target.nonzero(as_tuple=True)
        scores = matcher.score_pairs(images.rows(of_image), texts.rows(of_text))
        return {"logistic": logistic_loss(scores, batch.text_target[of_text, of_image]) / max(1, len(of_text))}
