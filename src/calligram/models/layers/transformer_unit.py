"""The Transformer unit of mmca over the parts of one item, and over the stacked parts of a pair; and its n-gram
filters.

The queries, keys and values of stacked parts do not depend on the other item of the pair. The attention of an item's
parts to each other does not either, except for its weight. Let Z be the sum of exp of the logits. The softmax over own
and other parts gives

    (Z_own attended_own + Z_other attended_other) / (Z_own + Z_other).

So a pair needs only attention to the other item, with one more key that stands for all own parts. Its logit is log
Z_own, and its softmax weight is the factor of attended_own. This key, and the mask of the padding, are extra columns of
queries and keys. So one attention kernel without a mask computes everything.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from calligram.device import without_cudnn_attention
from calligram.models.matcher import at_least_float32

NGRAM_SIZES = (1, 2, 3)
"""words of the n-gram filters"""
MASKED_LOGIT = -1e4
"""logit of padding: its exp is zero, and half precision can represent it"""
EXTRA_COLUMNS = 3
"""extra columns of queries and keys: log Z_own in two pieces, and the mask"""


class PreparedItems(NamedTuple):
    """N items of K parts, prepared for attention with any other items; H heads of size S."""

    parts: Tensor
    """(N, K, D)"""
    mask: Tensor
    """(N, K) True for real parts"""
    attended: Tensor
    """(N, K, H, S) output of the attention of each part to its own item"""
    queries: Tensor
    """(N, K, H, E) queries with the extra columns"""
    keys: Tensor
    """(N, H, K + 1, E); the last key stands for the own parts of the query's item"""
    values: Tensor
    """(N, H, K + 1, E); the first extra column is one for the last key and zero for the others"""


class ProjectedItems(NamedTuple):
    """N items of K parts with their queries, keys and values, to be stacked with other items."""

    parts: Tensor
    """(N, K, D)"""
    mask: Tensor
    """(N, K) True for real parts"""
    projected: Tensor
    """(N, K, 3 D) queries divided by the root of their size, keys, and values, concatenated"""


class TransformerUnit(nn.Module):
    """Multi-head attention and two position-wise layers, each with a residual and layer norm (mmca, Eqs. 1-4).

    As printed, projections have no bias, and the inner layer has the size of the outer. Eq. 11 prints the root of d
    where Eq. 1 has d_k; here both are d_k, because the text calls it "another Transformer unit". The paper does not
    mention dropout, and there is none. Matrices are initialised with Xavier.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"the size of parts must be a multiple of the heads, got {dim} and {heads}")
        self.heads, self.size = heads, dim // heads
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.inner, self.outer = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.attended_norm, self.norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        for layer in (self.query, self.key, self.value, self.out, self.inner, self.outer):
            nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(self.inner.bias)
        nn.init.zeros_(self.outer.bias)

    def forward(self, parts: Tensor, mask: Tensor) -> Tensor:
        """Map parts (N, K, D) and their mask to (N, K, D), by attention within each item."""
        query, key, value = self._split_heads(self._project(parts)).unbind(0)
        with without_cudnn_attention(parts):
            attended = F.scaled_dot_product_attention(query, key, value, _mask_bias(mask, query.dtype), scale=1.0)
        return self.feed_forward(parts, _join_heads(attended))

    def prepare_items(self, parts: Tensor, mask: Tensor) -> PreparedItems:
        """Compute once per item what all of its pairs need."""
        stacked = self._split_heads(self._project(parts)).contiguous()  # one copy, read by all that follows
        query, key, value = stacked.unbind(0)
        shares, total = OwnSoftmax.apply(query @ key.mT, _mask_bias(mask, torch.float32))  # type: ignore[no-untyped-call]
        # The layout of the attention output, so that merging moves no data.
        attended = (shares @ value).transpose(1, 2).contiguous()
        queries, keys, values = AppendColumns.apply(stacked, total, mask)  # type: ignore[no-untyped-call]
        return PreparedItems(parts.to(value.dtype), mask, attended, queries, keys, values)

    def attend(self, items: PreparedItems, context: PreparedItems) -> Tensor:
        """Attention of the parts of ``items`` to S context items, and the weight of their own parts (S, N, K, H, E).

        With ``merge_own`` this is the unit over the stacked parts of all pairs, for the parts of one modality (mmca,
        Eqs. 8-14).
        """
        count, positions = items.mask.shape
        queries = items.queries.flatten(0, 1).transpose(0, 1).expand(len(context.keys), -1, -1, -1)
        found = F.scaled_dot_product_attention(queries, context.keys, context.values, scale=1.0)
        return found.transpose(1, 2).view(len(context.keys), count, positions, self.heads, -1)

    def merge_own(self, found: Tensor, attended: Tensor, parts: Tensor) -> Tensor:
        """Merge the output of ``attend`` with the attention of parts (N, K, D) to their own items, then feed forward:
        (S, N, K, D).
        """
        # Split instead of slices: the backward pass then concatenates gradients instead of adding them.
        others, share, _ = torch.split(found, [self.size, 1, found.shape[-1] - self.size - 1], -1)
        merged = torch.addcmul(others, share, attended)
        return self.feed_forward(parts, merged.flatten(3))

    def project_items(self, parts: Tensor, mask: Tensor) -> ProjectedItems:
        """Compute queries, keys and values once per item."""
        projected = self._project(parts)
        return ProjectedItems(parts.to(projected.dtype), mask, projected)

    def attend_stacked(self, one: ProjectedItems, two: ProjectedItems) -> Tensor:
        """Attention over the stacked parts of aligned pairs, heads concatenated (N, K + L, D).

        With ``feed_forward`` this is the unit over stacked parts (mmca, Eqs. 8-14). Attention within an item is
        computed for each of its pairs, which is cheaper than ``attend`` if the item is in few pairs.
        """
        with without_cudnn_attention(one.parts):
            return _join_heads(F.scaled_dot_product_attention(*self._split(one, two), scale=1.0))

    def attention_weights(self, one: ProjectedItems, two: ProjectedItems) -> Tensor:
        """Attention weights between the stacked parts of aligned pairs, averaged over heads (N, K + L, K + L)."""
        query, key, _, bias = self._split(one, two)
        logits = at_least_float32(query @ key.mT)
        logits = logits if bias is None else logits + bias
        return torch.softmax(logits, -1).mean(1)

    def feed_forward(self, parts: Tensor, attended: Tensor) -> Tensor:
        """Apply the output projection, the residuals and the position-wise layers to concatenated heads (..., K, D)."""
        parts = _layer_norm(self.attended_norm, parts + self.out(attended))
        return _layer_norm(self.norm, parts + self.outer(F.relu(self.inner(parts), inplace=True)))

    def _split(self, one: ProjectedItems, two: ProjectedItems) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries, keys and values of stacked parts (N, H, K + L, S), and the mask as a bias on the logits."""
        mask, heads = torch.cat([one.mask, two.mask], 1), torch.cat([one.projected, two.projected], 1)
        query, key, value = self._split_heads(heads).unbind(0)
        # On a CPU the check is free and a mask costs a fifth of the attention; a GPU would have to wait for the check.
        hidden = None if mask.device.type == "cpu" and bool(mask.all()) else _mask_bias(mask, query.dtype)
        return query, key, value, hidden

    def _project(self, parts: Tensor) -> Tensor:
        """Queries divided by the root of their size, keys, and values, concatenated: (..., 3 D)."""
        query, key, value = self.query.weight * self.size**-0.5, self.key.weight, self.value.weight
        return F.linear(parts, torch.cat([query, key, value]))

    def _split_heads(self, stacked: Tensor) -> Tensor:
        """View (N, K, 3 D) as (3, N, H, K, S)."""
        return stacked.view(*stacked.shape[:2], 3, self.heads, self.size).permute(2, 0, 3, 1, 4)


def _layer_norm(norm: nn.LayerNorm, parts: Tensor) -> Tensor:
    """Layer norm with an output in the precision of the parts; its sums are in float32.

    Under autocast the output would be float32, which makes all following operations slower.
    """
    with torch.autocast(parts.device.type, enabled=False):
        weight, bias = norm.weight.to(parts.dtype), norm.bias.to(parts.dtype)
        return F.layer_norm(parts, norm.normalized_shape, weight, bias, norm.eps)


def _join_heads(heads: Tensor) -> Tensor:
    """(N, H, K, S) -> (N, K, H S)."""
    return heads.transpose(1, 2).flatten(2)


def _mask_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """(N, 1, 1, K) zero for real parts, ``MASKED_LOGIT`` for padding."""
    return (~mask * MASKED_LOGIT).to(dtype)[:, None, None]


class OwnSoftmax(Function):
    """Softmax of logits (..., K) in their precision, and the logarithm of its denominator (..., 1) in float32.

    The gradients of this function and of ``AppendColumns`` are written by hand. The same from PyTorch operations takes
    three times as many small kernels, and a GPU then mostly waits for their launch.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Args:
        bias: added to the logits, in float32; it has no gradient.
        """
        biased = logits + bias
        shares = torch.softmax(biased, -1)
        # Computed at the largest weight, where its logarithm is most precise.
        total = biased.amax(-1, keepdim=True) - shares.amax(-1, keepdim=True).log_()
        ctx.save_for_backward(shares)
        ctx.precision = logits.dtype
        return shares.to(logits.dtype), total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_shares: Tensor, of_total: Tensor) -> tuple[Tensor, None]:
        """P (g - sum P g) for the softmax, and P for the logarithm."""
        (shares,) = ctx.saved_tensors
        of_logits = torch._softmax_backward_data(of_shares.to(shares.dtype), shares, -1, shares.dtype)
        return torch.addcmul(of_logits, shares, of_total).to(ctx.precision), None


class AppendColumns(Function):
    """Append columns to queries, keys and values that carry the weight of own parts and the mask.

    A query gets log Z_own in two columns and a one. Half precision has 8 or 11 bits, so the second column holds the
    rounding error of the first. A key gets zeros and the logit of the mask. One more key, for the own parts of the
    query's item, has ones and a zero. The values are zero in these columns, except for a one in the first column of
    that last key. Sizes are padded to a multiple of 8.
    """

    @staticmethod
    def forward(ctx: Any, stacked: Tensor, total: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Args:
            stacked: (3, N, H, K, S) queries, keys and values.
            total: (N, H, K, 1) log Z_own, in float32.
            mask: (N, K) True for real parts.

        Returns:
            Queries (N, K, H, E), keys and values (N, H, K + 1, E).
        """
        _, items, heads, positions, size = stacked.shape
        width = size + EXTRA_COLUMNS + -(size + EXTRA_COLUMNS) % 8
        queries = stacked.new_zeros(items, positions, heads, width)
        by_head = queries.transpose(1, 2)
        by_head[..., :size] = stacked[0]
        by_head[..., size : size + 1] = total
        by_head[..., size + 1 : size + 2] = total - by_head[..., size : size + 1]
        queries[..., size + 2] = 1.0
        keys_values = stacked.new_zeros(2, items, heads, positions + 1, width)
        keys_values[..., :positions, :size] = stacked[1:]
        keys_values[0, :, :, :positions, size + 2].masked_fill_(~mask.unsqueeze(1), MASKED_LOGIT)
        keys_values[0, :, :, positions, size : size + 2] = 1.0
        keys_values[1, :, :, positions, size] = 1.0
        keys, values = keys_values
        ctx.size, ctx.precision = size, total.dtype
        return queries, keys, values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_queries: Tensor, of_keys: Tensor, of_values: Tensor) -> tuple[Tensor, Tensor, None]:
        """Gradients of the head's columns, and of the first piece of log Z_own; the second piece is a rounding
        error.
        """
        size, by_head = ctx.size, of_queries.transpose(1, 2)
        parts = by_head[..., :size], of_keys[:, :, :-1, :size], of_values[:, :, :-1, :size]
        return torch.stack(parts), by_head[..., size : size + 1].to(ctx.precision), None


class NgramText(nn.Module):
    """Uni-, bi- and trigram filters with ReLU, their maximum over a text's words, and a linear map (mmca, Eqs. 6, 7).

    An n-gram starts at each word and may reach beyond the last word, where there are zeros: Eq. 6 has as many positions
    as words, and so a text of one word has a bigram. ReLU and bias come after the maximum, which does not change the
    result. Eq. 7 prints layer norm where the text says length one; here vectors are not normalised, and are compared by
    cosine.

    The response of a filter to an n-gram is the sum of its responses to the words. One matrix product computes all of
    them, so n-grams are never copied.
    """

    def __init__(self, dim_in: int, filters: int, dim: int) -> None:
        super().__init__()
        self.windows = nn.ModuleList(nn.Linear(size * dim_in, filters) for size in NGRAM_SIZES)
        self.project = nn.Linear(len(NGRAM_SIZES) * filters, dim)
        nn.init.xavier_uniform_(self.project.weight)
        nn.init.zeros_(self.project.bias)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """Map words (..., W, D_in) and their mask, or a mask (..., W) to be repeated, to (..., dim)."""
        absent, size = ~mask.unsqueeze(-1), words.shape[-1]
        weights = [piece for layer in self.windows for piece in torch.split(layer.weight, size, 1)]  # type: ignore[arg-type]
        responses = F.linear(words.masked_fill(absent, 0.0), torch.cat(weights))
        if torch.compiler.is_compiling():
            found = best_ngrams_compiled(responses, absent)
        elif torch.is_grad_enabled() and responses.requires_grad:
            found = BestNgrams.apply(responses, absent)  # type: ignore[no-untyped-call]
        else:
            found = torch.cat([sums.amax(-2) for sums in _ngram_sums(responses, absent)], -1)
        return self.project_best(found)

    def project_best(self, found: Tensor) -> Tensor:
        """Map the largest responses (..., 3 F) to (..., dim)."""
        # A text without words has responses of minus infinity, which ReLU maps to zero.
        biases = torch.cat([layer.bias for layer in self.windows])  # type: ignore[misc]
        return self.project(torch.relu(found + biases))  # type: ignore[no-any-return]


def _split_by_ngram(responses: Tensor) -> list[list[Tensor]]:
    """Split (..., W, 6 F) by n-gram size, then by the word within the n-gram: (..., W, F) each."""
    pieces = iter(torch.split(responses, responses.shape[-1] // sum(NGRAM_SIZES), -1))
    return [[next(pieces) for _ in range(count)] for count in NGRAM_SIZES]


def _ngram_sums(responses: Tensor, absent: Tensor) -> list[Tensor]:
    """Responses to the n-grams that start at each word (..., W, F); minus infinity for padding."""
    found = []
    for first, *others in _split_by_ngram(responses):
        total = first.masked_fill(absent, -torch.inf)
        for by, other in enumerate(others, 1):
            total[..., :-by, :] += other[..., by:, :]
        found.append(total)
    return found


def best_ngrams_compiled(responses: Tensor, absent: Tensor) -> Tensor:
    """The output of ``BestNgrams`` from operations whose gradients the compiler knows, without in-place changes."""
    found = []
    for first, *others in _split_by_ngram(responses):
        for by, other in enumerate(others, 1):
            first = first + F.pad(other[..., by:, :], (0, 0, 0, min(by, other.shape[-2])))
        total = first.masked_fill(absent, -torch.inf)
        found.append(total.max(-2).values if torch.is_grad_enabled() else total.amax(-2))
    return torch.cat(found, -1)


class BestNgrams(Function):
    """Largest response of each filter over all n-grams of a text.

    The gradient is written directly to the words of one n-gram, the first of equals. Automatic differentiation would
    pass over all responses several times.
    """

    @staticmethod
    def forward(ctx: Any, responses: Tensor, absent: Tensor) -> Tensor:
        """Args:
            responses: (..., W, 6 F) responses of each filter's weights to single words: F unigrams, the first and
                second word of F bigrams, and the three words of F trigrams.
            absent: (..., W, 1) True for padding; may be broadcast.

        Returns:
            (..., 3 F).
        """
        found = [sums.max(-2) for sums in _ngram_sums(responses, absent)]
        ctx.save_for_backward(*(positions for _, positions in found))
        ctx.shape = responses.shape
        return torch.cat([best for best, _ in found], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_best: Tensor) -> tuple[Tensor, None]:
        """Gradient at the words of the best n-gram; none beyond the last word."""
        of_responses, last = of_best.new_zeros(ctx.shape), ctx.shape[-2] - 1
        gradients = torch.split(of_best, of_best.shape[-1] // len(NGRAM_SIZES), -1)
        for pieces, positions, gradient in zip(
            _split_by_ngram(of_responses), ctx.saved_tensors, gradients, strict=True
        ):
            for by, piece in enumerate(pieces):
                there = gradient.masked_fill(positions > last - by, 0.0) if by else gradient
                piece.scatter_(-2, (positions + by).clamp_(max=last).unsqueeze(-2), there.unsqueeze(-2))
        return of_responses, None
