"""Writing an image's captions from its regions: VSRN's second objective, whose network is used in training only."""

from __future__ import annotations

import bisect
import operator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calligram.models.matcher import Encoded, Matcher
from calligram.training.batches.batch import Batch
from calligram.training.distributed import own_rows
from calligram.training.objectives.objective import Objective


class CaptionObjective(Objective):
    """Minus the log probability of an image's captions, summed over words and averaged over pairs (vsrn).

    A GRU reads the regions, another writes the words: at each it attends to the regions by its state and is told the
    word before. Departs from the release, which divides its hinge by nothing and this by the batch, by the mean over
    pairs, as all objectives here are; and in ending at a caption's own end instead of one place later.
    """

    def __init__(
        self,
        dim: int,
        vocabulary: int,
        *,
        hidden: int = 512,
        word_dim: int = 300,
        dropout: float = 0.2,
        mask_token: int | None = None,
    ) -> None:
        """Args:
        dim: of the regions that the matcher gives as parts in training.
        blank: number of hidden words, which are not to be written.
        """
        super().__init__()
        self.squeeze = nn.Linear(dim, hidden)
        self.dropout = nn.Dropout(dropout)
        self.reader = nn.GRU(hidden, hidden, batch_first=True)
        self.words = nn.Embedding(vocabulary, word_dim)
        self.attend = nn.Linear(2 * hidden, hidden)
        self.weigh = nn.Linear(hidden, 1, bias=False)
        self.writer = nn.GRUCell(word_dim + hidden, hidden)
        self.out = nn.Linear(hidden, vocabulary)
        for layer in (self.squeeze, self.out):
            nn.init.xavier_normal_(layer.weight)
        self.mask_token = mask_token

    def terms(self, matcher: Matcher, batch: Batch, images: Encoded, texts: Encoded) -> dict[str, Tensor]:
        """One term. Each process writes the captions it holds, of all images, and counts for as many as there are."""
        del matcher, texts
        if images.parts is None or images.mask is None:
            raise ValueError("captions are written from parts, which this matcher does not give")
        match = batch.image_target > 0
        own, processes = own_rows(match.shape[1])
        image, text = match[:, own].nonzero(as_tuple=True)
        total = self.loss(images.parts[image], images.mask[image], batch.texts[text], batch.text_mask[text])
        return {"captions": processes * total / match.sum().clamp(min=1)}

    def loss(self, regions: Tensor, real: Tensor, words: Tensor, mask: Tensor) -> Tensor:
        """Minus the log probability of all words of N captions, given N images' regions (real ones first)."""
        if not len(words):
            return regions.sum() * 0.0
        seen, _ = self.reader(self.dropout(self.squeeze(regions)))
        last = (real.sum(1) - 1).clamp(min=0)
        state = seen[torch.arange(len(seen), device=seen.device), last]
        # The longest first: captions that have ended are then the last rows, and no longer written.
        counts = mask[:, 1:].sum(1)
        order = counts.argsort(descending=True, stable=True)
        words, mask = words[order], mask[order]
        states = self._write(seen[order], real[order], state[order], words[:, :-1], counts[order].tolist())
        target = words[:, 1:].T[mask[:, 1:].T]
        if self.mask_token is not None:
            wanted = target != self.mask_token
            states, target = states[wanted], target[wanted]
        return F.cross_entropy(self.out(states), target, reduction="sum")

    def _write(self, seen: Tensor, real: Tensor, state: Tensor, before: Tensor, counts: list[int]) -> Tensor:
        """The states after each word, (words, H): of all captions after the first, then after the second, and so on.

        Args:
            counts: words that are to be written of each caption, falling.
        """
        hidden = seen.shape[-1]
        # The layer over (region, state) side by side, of which the regions' half is the same at every word.
        of_regions = F.linear(seen, self.attend.weight[:, :hidden], self.attend.bias)
        # In the precision of what they meet, once and not at every word.
        weight, told = self.attend.weight[:, hidden:].to(seen.dtype), self.words(before).to(seen.dtype)
        states = []
        for place in range(counts[0]):
            going = bisect.bisect_left(counts, -place, key=operator.neg)
            if going < len(state):
                seen, real, state, of_regions = seen[:going], real[:going], state[:going], of_regions[:going]
            logits = self.weigh(torch.tanh(of_regions + F.linear(state, weight).unsqueeze(1))).squeeze(-1)
            weights = torch.softmax(logits.masked_fill(~real, torch.finfo(logits.dtype).min), dim=1)
            context = (weights.unsqueeze(1) @ seen).squeeze(1)
            state = self.writer(torch.cat([told[:going, place], context], dim=1), state)
            states.append(state)
        return torch.cat(states) if states else state[:0]
