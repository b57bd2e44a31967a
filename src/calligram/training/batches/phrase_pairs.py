"""Pairs of truth regions and phrases, the proposals that match them, and neighbourhoods within each modality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from calligram.data.boxes import iou
from calligram.data.grounding import GroundedPhrases, ImageBoxes
from calligram.data.matches import Matches
from calligram.text import caption_key

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Targets = NDArray[np.int8]

POSITIVE_IOU = 0.7
"""a proposal with at least this IoU with a truth region is a positive; the paper's value"""
NEGATIVE_IOU = 0.3
"""a proposal with a smaller IoU with a truth region is a negative; the paper's value"""


@dataclass(frozen=True)
class PhrasePairs:
    """Every pair of a truth region and a phrase of a split, with the proposals that overlap it (two-branch, Sec. 4.1).

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

    @cached_property
    def described(self) -> Matches:
        """Regions and the texts that describe them: the texts of every chain whose truth region they match."""
        counts = [len(regions) for regions in self.positives]
        chains, regions = np.repeat(np.arange(len(counts)), counts), np.concatenate(self.positives)
        words = np.array([len(texts) for texts in self.texts_of], dtype=np.int64)[chains]
        texts = np.concatenate([self.texts_of[chain] for chain in chains.tolist()])
        return Matches(np.repeat(regions, words), texts, (len(self.chain_of_region), len(self.strings)))

    @cached_property
    def _chains_of_texts(self) -> Matches:
        return Matches(self.texts, self.chains, (len(self.strings), len(self.positives)))

    def neighbourhoods(self, paired: Ints, background: Ints, texts: Ints) -> tuple[Targets, Targets]:
        """Neighbourhoods of the regions and of the texts of a batch (two-branch, Eqs. 4 and 5, Sec. 3.2.3).

        N(x) are the other regions, of any image, that a text of the batch describes as well as x. N(y) are the other
        texts that describe a region of the batch that y describes. Items that only a text or a chain outside the batch
        connects are ignored. Regions and texts are compared by their numbers, because a phrase of two pairs has two
        columns and is one text: a repeated item counts once.

        Args:
            paired: (R,) regions of the positive pairs of the batch. Only they have neighbours and are neighbours.
            background: (B,) negative regions. They are outsiders, or ignored where they share a text with the anchor.
            texts: (T,) texts of the batch.

        Returns:
            (R, R + B) with the paired regions as anchors, and (T, T): +1 neighbour, -1 outsider, 0 ignored.
        """
        regions = np.concatenate([paired, background])
        distinct, places = np.unique(texts, return_inverse=True)
        batch, rows = self.described.select(paired, distinct), np.arange(len(paired))
        near = np.pad(batch.sharing(rows, rows), [(0, 0), (0, len(background))])
        return (
            _neighbourhood(regions, near, self.described.sharing(paired, regions)),
            _neighbourhood(texts, batch.T.sharing(places, places), self._chains_of_texts.sharing(texts, texts)),
        )


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


def _neighbourhood(items: Ints, near: Bools, connected: Bools) -> Targets:
    """+1 where two different items are near, -1 where they are not even connected, 0 elsewhere.

    Rows and columns of an item that came before are 0.
    """
    found = np.where(near, 1, np.where(connected, 0, -1)).astype(np.int8)
    np.fill_diagonal(found, 0)
    repeated = np.ones(len(items), dtype=bool)
    repeated[np.unique(items, return_index=True)[1]] = False
    found[repeated[: len(found)]] = 0
    found[:, repeated] = 0
    return found
