"""A3VSE: regions and words, each attended to by what their own image or text is about as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from calligram.models.layers.networks import RecurrentText
from calligram.models.layers.part_towers import PartSettings, image_parts, image_tower, text_parts, text_tower
from calligram.models.matcher import EmbeddingMatcher, Encoded


@dataclass(frozen=True)
class A3VSESettings(PartSettings):
    """Both sides, and what is between parts and vectors; sizes are the paper's (a3vse, Sec. 4.3)."""

    dim: int = 512
    """H, of each part"""
    hidden: int = 512
    bidirectional: bool = False
    cell: Literal["lstm", "gru"] = "lstm"
    attention: Literal["context", "mean"] = "context"
    """by context, or the mean over parts as in the ablation (a3vse, Table 5)"""
    heads: int = 3
    """K"""
    context: int = 512
    """K', size of the space in which context and parts are compared"""
    temperature: float | None = None
    """lambda, a factor on what enters the softmax; None for one over the root of ``context``"""
    merge: Literal["concat", "mean"] = "concat"
    """what the heads' vectors become: one after the other, or their mean"""


class ContextAttention(nn.Module):
    """K attentions over parts, by how well each goes with the mean of all (a3vse, Eq. 1).

    Head k gives part i the weight softmax_i(lambda a_ik), a_ik = tanh(P_k mean_j v_j) . tanh(Q_k v_i), and is the
    weighted sum of the parts; softmax and mean are over real parts.

    The equation as printed has no free index i in a_ik, and a bracket that would put the sum over parts around both
    factors; read so, every part of an image would weigh the same. It calls the weights both W_k and alpha and lists
    W_k among the parameters, though its size is the number of parts: they are the weights, not parameters. Matrices
    start as Xavier's and have no bias. Lambda is a constant that the paper does not give: one over the root of K', so
    that logits have a size that does not depend on it. With 1 and a K' of 64 half of the attention starts, and stays,
    on one cell of 49, and fewer captions are found.
    """

    def __init__(self, dim: int, heads: int, context: int, temperature: float | None = None) -> None:
        super().__init__()
        self.heads, self.temperature = heads, context**-0.5 if temperature is None else temperature
        self.whole = nn.Linear(dim, heads * context, bias=False)
        self.parts = nn.Linear(dim, heads * context, bias=False)
        for layer in (self.whole, self.parts):
            for head in layer.weight.chunk(heads):  # each as a matrix of its own
                nn.init.xavier_uniform_(head.data)

    def forward(self, parts: Tensor, real: Tensor) -> Tensor:
        """Parts (N, R, D) and which are real -> (N, K, D), a vector for each head."""
        return self.weights(parts, real) @ parts

    def weights(self, parts: Tensor, real: Tensor) -> Tensor:
        """Of each part in each head, (N, K, R); zero where there is none."""
        count, places = real.shape
        whole = torch.tanh(self.whole(mean_of_parts(parts, real))).view(count, self.heads, -1)
        each = torch.tanh(self.parts(parts)).view(count, places, self.heads, -1)
        logits = torch.einsum("nkc,nrkc->nkr", whole, each).float() * self.temperature
        shares = logits.masked_fill(~real.unsqueeze(1), -torch.inf).softmax(-1)
        # Without a single real part a softmax is of nothing.
        return shares.nan_to_num(0.0).to(parts.dtype)


class MeanAttention(nn.Module):
    """The mean over real parts: one head that looks at all of them alike."""

    def forward(self, parts: Tensor, real: Tensor) -> Tensor:
        """(N, R, D) -> (N, 1, D)."""
        return mean_of_parts(parts, real).unsqueeze(1)


def mean_of_parts(parts: Tensor, real: Tensor) -> Tensor:
    """The mean over real parts (N, D)."""
    return (parts * real.unsqueeze(-1)).sum(1) / real.sum(1).clamp(min=1).unsqueeze(-1)


class A3VSE(EmbeddingMatcher):
    """Cosine of attended regions and attended words, each side with attention of its own (a3vse, Secs. 3.2 and 3.3).

    Regions, or the cells of a backbone's grid, pass one linear layer, from features as they are, without
    normalisation; words pass a table and an LSTM. Each side's attention is a ``ContextAttention``. The paper leaves
    open how K heads become one vector, which is theirs one after the other here (Eq. 1 writes a list), and the
    LSTM's size and direction: H, and one way. Its cosine is of the whole, so that heads share one length.
    """

    settings: A3VSESettings

    def __init__(self, settings: A3VSESettings) -> None:
        super().__init__()
        self.settings = settings
        self.image, self.project = image_tower(settings)
        self.text = text_tower(settings, cell=settings.cell)
        if isinstance(self.text, RecurrentText):
            for name, weights in self.text.recurrent.named_parameters():
                nn.init.xavier_uniform_(weights) if "weight" in name else nn.init.zeros_(weights)
        self.image_attention, self.text_attention = self._attention(), self._attention()

    @property
    def vector_size(self) -> int:
        """That of all heads, where they stand one after the other."""
        own = self.settings
        return own.dim * (own.heads if own.merge == "concat" and own.attention == "context" else 1)

    def _attention(self) -> ContextAttention | MeanAttention:
        own = self.settings
        if own.attention == "mean":
            return MeanAttention()
        return ContextAttention(own.dim, own.heads, own.context, own.temperature)

    def _merged(self, heads: Tensor) -> Tensor:
        return heads.flatten(1) if self.settings.merge == "concat" else heads.mean(1)

    def encode_images(self, images: Tensor, mask: Tensor | None = None) -> Encoded:
        """Features (N, R, D) of regions or cells, or pixels (N, 3, H, W) for a backbone."""
        features, real = image_parts(self.image, images, mask)
        return Encoded(self._merged(self.image_attention(self.project(features), real)))

    def encode_texts(self, texts: Tensor, mask: Tensor | None = None) -> Encoded:
        """Word numbers (N, W), or states (N, W, D)."""
        mask = torch.ones(texts.shape[:2], dtype=torch.bool, device=texts.device) if mask is None else mask
        return Encoded(self._merged(self.text_attention(text_parts(self.text, texts, mask), mask)))
