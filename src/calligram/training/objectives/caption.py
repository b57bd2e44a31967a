"""The caption decoder of VSRN: captions from regions, as a second objective in training only."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calligram.device import GRAPH_DEVICE_TYPE
from calligram.models.layers.attending_gru import AttendingGRU
from calligram.models.matcher import Encoded, Matcher
from calligram.training.batches.batch import Batch
from calligram.training.distributed import is_single_process, own_rows
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
        """No: on an H200 the replay of a step took 148 ms, where a normal step took 33. The cause is not known."""
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
            states = self._decode(encoded, real, state, words[:, :-1], [len(words)] * (words.shape[1] - 1))
            predicted = mask[:, 1:] if self.mask_token is None else mask[:, 1:] & (words[:, 1:] != self.mask_token)
            target = words[:, 1:].masked_fill(~predicted, IGNORED).T.flatten()
            return F.cross_entropy(self.out(states.flatten(0, 1)), target, ignore_index=IGNORED, reduction="sum")
        # Longest first: captions that have ended are then the last rows and are cut off.
        order = mask[:, 1:].sum(1).argsort(descending=True, stable=True)
        words, mask = words[order], mask[order]
        counts = [count for count in mask[:, 1:].sum(0).tolist() if count]
        states = self._decode(encoded[order], real[order], state[order], words[:, : len(counts)], counts)
        following, predicted = (each[:, 1 : 1 + len(counts)].T for each in (words, mask))
        if self.mask_token is not None:
            predicted = predicted & (following != self.mask_token)
        return F.cross_entropy(self.out(states[predicted]), following[predicted], reduction="sum")

    def _decode(self, encoded: Tensor, real: Tensor, state: Tensor, before: Tensor, counts: list[int]) -> Tensor:
        """Return the states of the decoder (T, N, H) after each word.

        Args:
            before: (N, T) the words before the predicted ones.
            counts: number of captions that have a word at each position, descending; they are the first ones.
        """
        hidden, kind = encoded.shape[-1], encoded.dtype
        # The attention layer takes (region, state), and the GRU takes (word, context). The products with regions and
        # with words do not depend on the state, so all of them are computed at once.
        keys = F.linear(encoded, self.attend.weight[:, :hidden], self.attend.bias)
        word_weight, context_weight = self.writer.weight_ih[:, :-hidden], self.writer.weight_ih[:, -hidden:]
        word_inputs = F.linear(self.words(before.T), word_weight, self.writer.bias_ih)
        # The state is multiplied by both matrices at once.
        state_weight = torch.cat([self.attend.weight[:, hidden:], self.writer.weight_hh])
        bias = F.pad(self.writer.bias_hh, (hidden, 0))
        found: Tensor = AttendingGRU.apply(  # type: ignore[no-untyped-call]
            counts, real, *(given.contiguous().to(kind) for given in (encoded, keys, word_inputs, state)),
            *(weight.to(kind) for weight in (state_weight, bias, context_weight, self.weigh.weight[0])),
        )  # fmt: skip
        return found
