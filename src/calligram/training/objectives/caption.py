"""The caption decoder of VSRN: captions from regions, as a second objective in training only."""

from __future__ import annotations

import bisect
import operator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calligram.device import GRAPH_DEVICE_TYPE, is_single_process
from calligram.models.matcher import Encoded, Matcher
from calligram.training.batches.batch import Batch
from calligram.training.distributed import own_rows
from calligram.training.objectives.objective import Objective

IGNORED = -100
"""target of a word that is not predicted"""


class CaptionObjective(Objective):
    """Minus the log probability of an image's captions, summed over words and averaged over pairs (vsrn).

    One GRU encodes the regions, another decodes the words. At each word the decoder attends to the regions by its state
    and receives the previous word. Departs from the release in two ways. It is the mean over pairs, as all objectives
    here; the release sums its hinge loss and divides this loss by the batch size. And it ends at the end of each
    caption instead of one position later.
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
        dim: size of the parts of an image in training, or of its vector where the matcher has no parts.
        mask_token: index of dropped words, which are not predicted; None for none.
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
        """Return one term. Each process decodes its own captions, and the mean is over those of all processes."""
        del matcher, texts
        parts, mask = images.parts, images.mask
        if parts is None:  # a matcher of vectors: its vector is the only part
            parts = images.vectors.unsqueeze(1)
        if mask is None:
            mask = parts.new_ones(parts.shape[:2], dtype=torch.bool)
        if is_single_process() and batch.matching is not None:
            image, text = batch.matching.unbind(1)
            total, pairs = self.loss(parts[image], mask[image], batch.texts[text], batch.text_mask[text]), len(image)
            return {"captions": total / max(1, pairs)}
        match = batch.image_target > 0
        own, processes = own_rows(match.shape[1])
        image, text = match[:, own].nonzero(as_tuple=True)
        total = self.loss(parts[image], mask[image], batch.texts[text], batch.text_mask[text])
        return {"captions": processes * total / match.sum().clamp(min=1)}

    @property
    def graph_safe(self) -> bool:
        """No: with graphs, a step ended with an illegal memory access on an H200. The cause is not known."""
        return False

    def loss(self, regions: Tensor, real: Tensor, words: Tensor, mask: Tensor) -> Tensor:
        """Minus the log probability of all words of N captions, given the regions of N images (real ones first)."""
        if not len(words):
            return regions.sum() * 0.0
        encoded, _ = self.reader(self.dropout(self.squeeze(regions)))
        last = (real.sum(1) - 1).clamp(min=0)
        state = encoded[torch.arange(len(encoded), device=encoded.device), last]
        if encoded.device.type == GRAPH_DEVICE_TYPE:
            # To cut off captions that have ended, their lengths would have to be read, which waits for the device.
            states = self._decode(encoded, real, state, words[:, :-1], [words.shape[1] - 1] * len(words))
            predicted = mask[:, 1:] if self.mask_token is None else mask[:, 1:] & (words[:, 1:] != self.mask_token)
            target = words[:, 1:].masked_fill(~predicted, IGNORED).T.flatten()
            return F.cross_entropy(self.out(states), target, ignore_index=IGNORED, reduction="sum")
        # Longest first: captions that have ended are then the last rows and are cut off.
        counts = mask[:, 1:].sum(1)
        order = counts.argsort(descending=True, stable=True)
        words, mask = words[order], mask[order]
        states = self._decode(encoded[order], real[order], state[order], words[:, :-1], counts[order].tolist())
        target = words[:, 1:].T[mask[:, 1:].T]
        if self.mask_token is not None:
            predicted = target != self.mask_token
            states, target = states[predicted], target[predicted]
        return F.cross_entropy(self.out(states), target, reduction="sum")

    def _decode(self, encoded: Tensor, real: Tensor, state: Tensor, before: Tensor, counts: list[int]) -> Tensor:
        """Decoder states, (words, H): of all captions at the first word, then at the second, and so on.

        Args:
            counts: number of words of each caption, descending.
        """
        hidden = encoded.shape[-1]
        # The attention layer takes (region, state); the product with the regions is the same at every word.
        of_regions = F.linear(encoded, self.attend.weight[:, :hidden], self.attend.bias)
        # Converted to the right precision once, and not at every word.
        weight, previous = self.attend.weight[:, hidden:].to(encoded.dtype), self.words(before).to(encoded.dtype)
        states = []
        for step in range(counts[0]):
            active = bisect.bisect_left(counts, -step, key=operator.neg)
            if active < len(state):
                encoded, real, state, of_regions = encoded[:active], real[:active], state[:active], of_regions[:active]
            logits = self.weigh(torch.tanh(of_regions + F.linear(state, weight).unsqueeze(1))).squeeze(-1)
            weights = torch.softmax(logits.masked_fill(~real, torch.finfo(logits.dtype).min), dim=1)
            context = (weights.unsqueeze(1) @ encoded).squeeze(1)
            state = self.writer(torch.cat([previous[:active, step], context], dim=1), state)
            states.append(state)
        return torch.cat(states) if states else state[:0]
