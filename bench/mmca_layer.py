"""MMCA's pair module as PyTorch would have it: one layer over stacked and padded pairs, with our weights and pools."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from calligram.models.layers.score_tiles import truncate_parts
from calligram.models.layers.transformer_unit import TransformerUnit
from calligram.models.matcher import Encoded
from calligram.models.mmca import MMCA
from calligram.vectors import unit_length


class Layer(nn.Module):
    """The pair module as one PyTorch layer over stacked pairs, and the same pools."""

    def __init__(self, matcher: MMCA) -> None:
        super().__init__()
        own, self.pools = matcher.pairs.unit, deepcopy(matcher.pairs.ngrams)
        dim = own.out.weight.shape[0]
        self.layer = nn.TransformerEncoderLayer(
            dim, own.heads, dim, dropout=0.0, batch_first=True, norm_first=False, device=own.out.weight.device
        )
        self.layer.load_state_dict(same_weights(own))

    def forward(self, images: Tensor, real: Tensor, texts: Tensor, spoken: Tensor) -> Tensor:
        """Cosines (N,) of aligned pairs."""
        parts, mask = torch.cat([images, texts], 1), torch.cat([real, spoken], 1)
        both, count = self.layer(parts, src_key_padding_mask=~mask), images.shape[1]
        weights = real.to(both.dtype) / real.sum(-1, keepdim=True)
        image = (weights.unsqueeze(1) @ both[:, :count]).squeeze(1)
        return (unit_length(image) * unit_length(self.pools(both[:, count:], spoken))).sum(-1)

    def grid(self, images: Encoded, texts: Encoded, tile: int) -> Tensor:
        """All pairs (I, T), so many at a time."""
        pairs = torch.arange(len(images.vectors) * len(texts.vectors), device=images.vectors.device)
        found = []
        for some in torch.split(pairs, tile):
            one, two = images.rows(some // len(texts.vectors)), texts.rows(some % len(texts.vectors))
            assert one.parts is not None
            assert one.mask is not None
            assert two.parts is not None
            assert two.mask is not None
            found.append(self(one.parts, one.mask, two.parts, two.mask))
        return torch.cat(found).view(len(images.vectors), len(texts.vectors))


def same_weights(own: TransformerUnit) -> dict[str, Tensor]:
    """Of our unit, by the names of PyTorch's layer; projections have no bias."""
    dim = own.out.weight.shape[0]
    return {
        "self_attn.in_proj_weight": torch.cat([own.query.weight, own.key.weight, own.value.weight]),
        "self_attn.in_proj_bias": own.out.weight.new_zeros(3 * dim),
        "self_attn.out_proj.weight": own.out.weight,
        "self_attn.out_proj.bias": own.out.weight.new_zeros(dim),
        **{f"linear1.{name}": value for name, value in own.inner.named_parameters()},
        **{f"linear2.{name}": value for name, value in own.outer.named_parameters()},
        **{f"norm1.{name}": value for name, value in own.attended_norm.named_parameters()},
        **{f"norm2.{name}": value for name, value in own.norm.named_parameters()},
    }


def by_pair(layer: Layer, images: Encoded, texts: Encoded, count: int) -> list[Tensor]:
    """So many pairs, one by one, each without padding."""
    assert texts.mask is not None
    found = []
    for number, words in enumerate(texts.mask[:count].sum(1).tolist()):
        one = images.rows(slice(number % len(images.vectors), number % len(images.vectors) + 1))
        two = truncate_parts(texts.rows(slice(number, number + 1)), words)
        found.append(layer.grid(one, two, 1))
    return found


def lowest(tensor: Tensor | None) -> Tensor | None:
    return tensor if tensor is None or tensor.dtype == torch.bool else tensor.bfloat16()
