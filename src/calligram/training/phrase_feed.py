"""Batches of regions and phrases for the loop, and the objective over pairs that were drawn in balance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calligram.errors import UserError
from calligram.features.inputs import ImageRows, Inputs, TextRows
from calligram.losses.logistic import logistic
from calligram.models.matcher import Matcher
from calligram.training.batch import Batch
from calligram.training.distributed import Processes
from calligram.training.objectives import Objective
from calligram.training.phrase_batches import Drawn, PhrasePairs
from calligram.training.samplers import derived_seed

Ints = NDArray[np.int64]
Draw = Callable[[PhrasePairs, Ints, np.random.Generator], Drawn]


class PhraseBatches:
    """All pairs of a split, shuffled into sets; what is drawn for a set is a batch (two-branch, Algorithm 1)."""

    def __init__(
        self,
        pairs: PhrasePairs,
        inputs: Inputs,
        truth: ImageRows,
        proposals: ImageRows,
        texts: TextRows,
        draw: Draw,
        *,
        seed: int,
        size: int = 100,
        sets: int | None = None,
        device: torch.device | str = "cpu",
        processes: Processes | None = None,
    ) -> None:
        """Args:
        truth: features of the truth region of each chain.
        proposals: features of the proposals, in the order in which ``pairs`` numbers them.
        texts: the strings of ``pairs``.
        draw: ``draw_triplets`` or ``draw_pairs``, with its options.
        size: pairs in a set.
        sets: how many sets make an epoch; all of them when None.
        """
        if len(pairs) < 2:
            raise UserError(f"training needs at least 2 pairs of a region and a phrase, this split has {len(pairs)}")
        self.pairs, self.inputs, self.draw, self.seed = pairs, inputs, draw, seed
        self._truth, self._proposals, self._texts = truth, proposals, texts
        self.size = min(size, len(pairs))
        self._sets = len(pairs) // self.size if sets is None else min(sets, len(pairs) // self.size)
        self.device, self.processes = torch.device(device), processes or Processes()

    def __len__(self) -> int:
        """Sets in an epoch; pairs that do not fill a set wait for the next shuffle."""
        return self._sets

    def drawn(self, number: int, step: int) -> Drawn:
        """The batch of one step, as numbers."""
        order = np.random.default_rng(derived_seed(self.seed, "sets", number)).permutation(len(self.pairs))
        chosen = order[step * self.size : (step + 1) * self.size]
        return self.draw(self.pairs, chosen, np.random.default_rng(derived_seed(self.seed, "draws", number, step)))

    def mean_size(self, count: Callable[[Drawn], int], sets: int = 20) -> float:
        """Triplets or pairs in a batch, over the first sets."""
        return float(np.mean([count(self.drawn(0, step)) for step in range(min(sets, len(self)))]))

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Batches of an epoch from ``start`` on; the next is prepared while the network works on this one."""
        with ThreadPoolExecutor(1) as ahead:
            coming = ahead.submit(self._host, number, start) if start < len(self) else None
            for step in range(start, len(self)):
                assert coming is not None
                host = coming.result()
                coming = ahead.submit(self._host, number, step + 1) if step + 1 < len(self) else None
                yield host.each(lambda tensor: tensor.to(self.device))

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
        """Features of regions as ``PhrasePairs`` numbers them."""
        count = len(self._truth)
        is_truth = regions < count
        one, two = self._truth.take(regions[is_truth]), self._proposals.take(regions[~is_truth] - count)
        order = np.argsort(np.concatenate([np.flatnonzero(is_truth), np.flatnonzero(~is_truth)]))
        return torch.cat([one, two])[torch.from_numpy(order)]


class DrawnPairsObjective(Objective):
    """Logistic regression over exactly the pairs of a batch (two-branch, Eq. 7), which were drawn in equal numbers.

    Departs from the paper's sum: divided by the number of pairs.
    """

    def forward(self, matcher: Matcher, batch: Batch) -> dict[str, Tensor]:
        """One term."""
        images, texts = self.encode(matcher, batch)
        of_text, of_image = batch.text_target.nonzero(as_tuple=True)
        scores = matcher.score_pairs(images.rows(of_image), texts.rows(of_text))
        return {"logistic": logistic(scores, batch.text_target[of_text, of_image]) / max(1, len(of_text))}
