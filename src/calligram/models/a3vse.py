"""A3VSE: multi-head attention over the parts of one item, with the mean of the parts as context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from calligram.models.layers.towers import RecurrentText, TwoTowerSettings, image_tower, joint_projection, text_tower
from calligram.models.matcher import EmbeddingMatcher, Encoded


@dataclass(frozen=True)
class A3VSESettings(TwoTowerSettings):
    """Settings of both towers and of the attention; the paper has dim 512 and an LSTM (a3vse, Sec. 4.3)."""

    regions = True

    attention: Annotated[
        Literal["context", "mean"], "weights of regions and words: by their context, or all equal (mean)"
    ] = "context"
    heads: Annotated[int, "number of attention heads of each tower, K", (1, 1000)] = 3
    context: Annotated[
        int, "dimension of the space in which context and parts are compared, K'", (1, 65536), "rare"
    ] = 512
    temperature: Annotated[
        float | None, "factor before the softmax, lambda; none for 1 / sqrt(a3vse.context)", (0, 10000), "rare"
    ] = None
    merge: Annotated[Literal["concat", "mean"], "combination of the heads: concatenation or mean", "rare"] = "concat"


class ContextAttention(nn.Module):
    """K attention heads over parts; the context is the mean of all parts (a3vse, Eq. 1).

    Head k gives part i the weight softmax_i(lambda a_ik) with a_ik = tanh(P_k mean_j v_j) . tanh(Q_k v_i). Its output
    is the weighted sum of the parts. Softmax and mean are over real parts only.

    Two errors in the printed equation are corrected. It has no free index i in a_ik, and its brackets put the sum over
    parts around both factors; taken literally, all parts of an image have the same weight. It lists W_k among the
    parameters, but the size of W_k is the number of parts: W_k are the attention weights.

    Matrices are initialised with Xavier and have no bias. The paper does not give lambda. The default 1 / sqrt(K')
    makes the size of the logits independent of K'. With lambda = 1 and K' = 64, half of the attention starts and stays
    on one cell of 49, and recall is lower.
    """

    def __init__(self, dim: int, heads: int, context: int, temperature: float | None = None) -> None:
        super().__init__()
        self.heads, self.temperature = heads, context**-0.5 if temperature is None else temperature
        self.whole = nn.Linear(dim, heads * context, bias=False)
        self.parts = nn.Linear(dim, heads * context, bias=False)
        for layer in (self.whole, self.parts):
            for head in layer.weight.chunk(heads):  # initialise each head as a separate matrix
                nn.init.xavier_uniform_(head.data)

    def forward(self, parts: Tensor, real: Tensor) -> Tensor:
        """Map parts (N, R, D) and their mask to (N, K, D), one vector for each head."""
        return self.weights(parts, real) @ parts

    def weights(self, parts: Tensor, real: Tensor) -> Tensor:
        """Attention weights (N, K, R) of each part in each head; zero for padding."""
        count, positions = real.shape
        whole = torch.tanh(self.whole(mean_of_parts(parts, real))).view(count, self.heads, -1)
        each = torch.tanh(self.parts(parts)).view(count, positions, self.heads, -1)
        logits = torch.einsum("nkc,nrkc->nkr", whole, each).float() * self.temperature
        shares = logits.masked_fill(~real.unsqueeze(1), -torch.inf).softmax(-1)
        # Softmax gives NaN for an item without a real part.
        return shares.nan_to_num(0.0).to(parts.dtype)


class MeanAttention(nn.Module):
    """Mean over real parts: one head with uniform weights."""

    def forward(self, parts: Tensor, real: Tensor) -> Tensor:
        """Map (N, R, D) to (N, 1, D)."""
        return mean_of_parts(parts, real).unsqueeze(1)


def mean_of_parts(parts: Tensor, real: Tensor) -> Tensor:
    """Mean over real parts, (N, D)."""
    return (parts * real.unsqueeze(-1)).sum(1) / real.sum(1).clamp(min=1).unsqueeze(-1)


class A3VSE(EmbeddingMatcher):
    """Cosine of attended regions and attended words; each tower has its own attention (a3vse, Secs. 3.2 and 3.3).

    Features of regions, or of the cells of a backbone's grid, pass one linear layer without normalisation. Words pass
    an embedding table and an LSTM. The paper does not say how K heads become one vector; here they are concatenated
    (Eq. 1 writes a list). It does not give the size and direction of the LSTM; presets take H and one direction. The
    cosine is of the concatenated vectors, so that all heads share one norm.
    """

    settings: A3VSESettings

    def __init__(self, settings: A3VSESettings) -> None:
        super().__init__()
        self.settings = settings
        self.image = image_tower(settings.image)
        self.project = joint_projection(self.image.size, settings.dim)
        self.text = text_tower(settings.text, settings.dim)
        if isinstance(self.text, RecurrentText):
            for name, weights in self.text.recurrent.named_parameters():
                nn.init.xavier_uniform_(weights) if "weight" in name else nn.init.zeros_(weights)
        self.image_attention, self.text_attention = self._build_attention(), self._build_attention()

    @property
    def vector_size(self) -> int:
        """Size of the concatenated heads, or of one head."""
        settings = self.settings
        return settings.dim * (settings.heads if settings.merge == "concat" and settings.attention == "context" else 1)

    def _build_attention(self) -> ContextAttention | MeanAttention:
        settings = self.settings
        if settings.attention == "mean":
            return MeanAttention()
        return ContextAttention(settings.dim, settings.heads, settings.context, settings.temperature)

    def _merge_heads(self, heads: Tensor) -> Tensor:
        return heads.flatten(1) if self.settings.merge == "concat" else heads.mean(1)

    def encode_images(self, images: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode features (N, R, D) of regions or cells, or pixels (N, 3, H, W)."""
        features, real = self.image.parts(images, mask)
        return Encoded(self._merge_heads(self.image_attention(self.project(features), real)))

    def encode_texts(self, texts: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode word indices (N, W), states (N, W, D) or vectors (N, D)."""
        return Encoded(self._merge_heads(self.text_attention(*self.text.parts(texts, mask))))
