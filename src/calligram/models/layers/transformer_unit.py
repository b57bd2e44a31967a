"""One Transformer unit over parts of items, and the same unit over the stacked parts of pairs of items (mmca).

In one unit the queries, keys and values of stacked parts are those of each item, whatever it is stacked with. Of the
attention, what an item's parts make of each other is the item's own too, but for its share: with Z the sum of exp
of the logits, softmax over own and other parts is

    (Z_own attended_own + Z_other attended_other) / (Z_own + Z_other),

so for a pair it is enough to look at the other item, with one more key that stands for all of the own parts: its
logit is log Z_own, and its share of the softmax is the factor of attended_own. That key, and the mask of parts that
only fill up, are columns that queries and keys are given, so that fused attention without a mask computes it all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from calligram.device import without_cudnn_attention

# What an item's parts make of each other, for attention that looks at other items: few steps forward, few back.
#
# Both steps have their gradients written out. Put together of PyTorch's own they are three times as many, each over
# little, and an accelerator waits for the next to be started most of the time.

MASKED_LOGIT = -1e4
"""logit of parts that are not real: exp of it is zero, and half precision has it"""
EXTRA_COLUMNS = 3
"""of queries and keys beside a head's own: log Z_own in two pieces, and the mask"""


class OwnSoftmax(Function):
    """Softmax of logits (..., K), in their precision, and the logarithm of its denominator (..., 1) in a wide one."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Args:
        bias: added to logits, in a wide precision; it has no gradient.
        """
        biased = logits + bias
        shares = torch.softmax(biased, -1)
        # From where the share is largest, and its logarithm most exact.
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
    """Queries, keys and values with the columns by which attention to others knows own parts, and the mask.

    A query has log Z_own in two columns, since half precision has eight or eleven bits and what is left over goes into
    a second, and a one. A key has zeros there and the mask's logit; one more key, which stands for the own parts of
    whoever looks, has ones and a zero. Values are zero there, but for a one in the first column of that last key.
    Sizes are filled up to a multiple of 8.
    """

    @staticmethod
    def forward(ctx: Any, stacked: Tensor, total: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Args:
            stacked: (3, N, H, K, S) queries, keys and values.
            total: (N, H, K, 1) log Z_own, in a wide precision.
            mask: (N, K) True where a part is real.

        Returns:
            Queries (N, K, H, E), keys and values (N, H, K + 1, E).
        """
        _, items, heads, places, size = stacked.shape
        whole = size + EXTRA_COLUMNS + -(size + EXTRA_COLUMNS) % 8
        queries = stacked.new_zeros(items, places, heads, whole)
        by_head = queries.transpose(1, 2)
        by_head[..., :size] = stacked[0]
        by_head[..., size : size + 1] = total
        by_head[..., size + 1 : size + 2] = total - by_head[..., size : size + 1]
        queries[..., size + 2] = 1.0
        seen = stacked.new_zeros(2, items, heads, places + 1, whole)
        seen[..., :places, :size] = stacked[1:]
        seen[0, :, :, :places, size + 2].masked_fill_(~mask.unsqueeze(1), MASKED_LOGIT)
        seen[0, :, :, places, size : size + 2] = 1.0
        seen[1, :, :, places, size] = 1.0
        keys, values = seen
        ctx.size, ctx.precision = size, total.dtype
        return queries, keys, values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_queries: Tensor, of_keys: Tensor, of_values: Tensor) -> tuple[Tensor, Tensor, None]:
        """Those of the head's own columns, and that of the first piece of log Z_own, which the second only rounds."""
        size, by_head = ctx.size, of_queries.transpose(1, 2)
        parts = by_head[..., :size], of_keys[:, :, :-1, :size], of_values[:, :, :-1, :size]
        return torch.stack(parts), by_head[..., size : size + 1].to(ctx.precision), None


def at_least_float32(tensor: Tensor) -> Tensor:
    """In single precision at least."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


class PreparedItems(NamedTuple):
    """N items of K parts as a unit sees them, H heads of size S; nothing here depends on what they are stacked with."""

    parts: Tensor
    """(N, K, D)"""
    mask: Tensor
    """(N, K) True where a part is real"""
    attended: Tensor
    """(N, K, H, S) what each part makes of its own item's"""
    queries: Tensor
    """(N, K, H, E) with the columns"""
    keys: Tensor
    """(N, H, K + 1, E); the last stands for the own parts of whoever looks"""
    values: Tensor
    """(N, H, K + 1, E); the column after the head's own is one for the last key, and zero for others"""


class ProjectedItems(NamedTuple):
    """N items of K parts with their queries, keys and values, to be stacked with others."""

    parts: Tensor
    """(N, K, D)"""
    mask: Tensor
    """(N, K) True where a part is real"""
    projected: Tensor
    """(N, K, 3 D) queries, with the root of their size taken off, keys and values, one after the other"""


class TransformerUnit(nn.Module):
    """Multi-head attention and two position-wise layers, each with a residual and layer norm (mmca, Eqs. 1-4).

    As printed, projections have no bias and the inner layer is as wide as the outer. Eq. 11 prints the root of d where
    Eq. 1 has d_k: it is d_k in both, the unit being "another Transformer unit". Dropout is not mentioned, and there is
    none. Matrices start as Xavier's.
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
        """Parts (N, K, D) and which are real -> (N, K, D), by attention to the same item's."""
        query, key, value = self._heads(self._stacked(parts)).unbind(0)
        with without_cudnn_attention(parts):
            attended = F.scaled_dot_product_attention(query, key, value, _mask_bias(mask, query.dtype), scale=1.0)
        return self.feed_forward(parts, _join_heads(attended))

    def prepare_items(self, parts: Tensor, mask: Tensor) -> PreparedItems:
        """What is computed once for each item, whatever it is paired with."""
        stacked = self._heads(self._stacked(parts)).contiguous()  # the one copy that all of what follows reads
        query, key, value = stacked.unbind(0)
        shares, total = OwnSoftmax.apply(query @ key.mT, _mask_bias(mask, torch.float32))  # type: ignore[no-untyped-call]
        # As attention gives what it finds, so that nothing is moved to be merged.
        attended = (shares @ value).transpose(1, 2).contiguous()
        queries, keys, values = AppendColumns.apply(stacked, total, mask)  # type: ignore[no-untyped-call]
        return PreparedItems(parts.to(value.dtype), mask, attended, queries, keys, values)

    def attend(self, who: PreparedItems, seen: PreparedItems) -> Tensor:
        """What the parts of ``who`` find in S other items, and the share of their own (S, N, K, H, E).

        With ``merged`` this is the unit over the stacked parts of all pairs, for the parts of one side
        (mmca, Eqs. 8-14).
        """
        items, places = who.mask.shape
        queries = who.queries.flatten(0, 1).transpose(0, 1).expand(len(seen.keys), -1, -1, -1)
        found = F.scaled_dot_product_attention(queries, seen.keys, seen.values, scale=1.0)
        return found.transpose(1, 2).view(len(seen.keys), items, places, self.heads, -1)

    def merge_own(self, found: Tensor, attended: Tensor, parts: Tensor) -> Tensor:
        """What ``found`` gave, with what parts (N, K, D) made of their own items, to the end: (S, N, K, D)."""
        # Split, not sliced: the gradient is then put together once instead of added up.
        others, share, _ = torch.split(found, [self.size, 1, found.shape[-1] - self.size - 1], -1)
        both = torch.addcmul(others, share, attended)
        return self.feed_forward(parts, both.flatten(3))

    def project_items(self, parts: Tensor, mask: Tensor) -> ProjectedItems:
        """What is computed once for each item that is stacked with others."""
        projected = self._stacked(parts)
        return ProjectedItems(parts.to(projected.dtype), mask, projected)

    def attend_stacked(self, one: ProjectedItems, two: ProjectedItems) -> Tensor:
        """What the stacked parts of aligned pairs make of each other, heads one after the other (N, K + L, D).

        With ``finished`` this is the unit over stacked parts (mmca, Eqs. 8-14). Attention within an item is computed
        for each of its pairs: where an item is in few, that is less than to put it together from what is known of it.
        """
        with without_cudnn_attention(one.parts):
            return _join_heads(F.scaled_dot_product_attention(*self._split(one, two), scale=1.0))

    def attention_weights(self, one: ProjectedItems, two: ProjectedItems) -> Tensor:
        """How much each stacked part of aligned pairs looks at each, the mean over heads (N, K + L, K + L)."""
        query, key, _, bias = self._split(one, two)
        logits = at_least_float32(query @ key.mT)
        logits = logits if bias is None else logits + bias
        return torch.softmax(logits, -1).mean(1)

    def feed_forward(self, parts: Tensor, attended: Tensor) -> Tensor:
        """Heads one after the other (..., K, D), through the output map, the residuals and the inner layers."""
        parts = _layer_norm(self.attended_norm, parts + self.out(attended))
        return _layer_norm(self.norm, parts + self.outer(F.relu(self.inner(parts), inplace=True)))

    def _split(self, one: ProjectedItems, two: ProjectedItems) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries, keys and values of stacked parts, (N, H, K + L, S), and what is added to logits for the mask."""
        mask, heads = torch.cat([one.mask, two.mask], 1), torch.cat([one.projected, two.projected], 1)
        query, key, value = self._heads(heads).unbind(0)
        # To look costs a CPU nothing, and a mask a fifth of the attention; an accelerator would have to wait.
        hidden = None if mask.device.type == "cpu" and bool(mask.all()) else _mask_bias(mask, query.dtype)
        return query, key, value, hidden

    def _stacked(self, parts: Tensor) -> Tensor:
        """Queries, with the root of their size taken off, keys and values, one after the other: (..., 3 D)."""
        query, key, value = self.query.weight * self.size**-0.5, self.key.weight, self.value.weight
        return F.linear(parts, torch.cat([query, key, value]))

    def _heads(self, stacked: Tensor) -> Tensor:
        """(N, K, 3 D) as (3, N, H, K, S), nothing moved."""
        return stacked.view(*stacked.shape[:2], 3, self.heads, self.size).permute(2, 0, 3, 1, 4)


def _layer_norm(norm: nn.LayerNorm, parts: Tensor) -> Tensor:
    """Layer norm in the precision of the parts; its sums are in single precision all the same.

    Autocast would have the result in single precision too, which all that follows would read and write.
    """
    with torch.autocast(parts.device.type, enabled=False):
        weight, bias = norm.weight.to(parts.dtype), norm.bias.to(parts.dtype)
        return F.layer_norm(parts, norm.normalized_shape, weight, bias, norm.eps)


def _join_heads(heads: Tensor) -> Tensor:
    """(N, H, K, S) -> (N, K, H S)."""
    return heads.transpose(1, 2).flatten(2)


def _mask_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """(N, 1, 1, K) zero for real parts, and what is never looked at for others."""
    return (~mask * MASKED_LOGIT).to(dtype)[:, None, None]


# Words in windows of one, two and three, the largest answer of each filter, and a linear map (mmca).

NGRAM_SIZES = (1, 2, 3)


class NgramText(nn.Module):
    """Uni-, bi- and trigram filters with ReLU, their maximum over a text's words, and a linear map (mmca, Eqs. 6, 7).

    A window begins at each word and may reach beyond the last, where there are zeros: Eq. 6 has as many places as
    there are words, and a text of one word has a bigram so. ReLU and bias follow the maximum, which they keep.
    Eq. 7 prints layer norm where the text says length one: vectors are left as they are, and compared by cosine.

    A filter's answer to a window is the sum of its answers to the window's words. One matrix product gives them all, so
    no window is ever copied together.
    """

    def __init__(self, dim_in: int, filters: int, dim: int) -> None:
        super().__init__()
        self.windows = nn.ModuleList(nn.Linear(size * dim_in, filters) for size in NGRAM_SIZES)
        self.project = nn.Linear(len(NGRAM_SIZES) * filters, dim)
        nn.init.xavier_uniform_(self.project.weight)
        nn.init.zeros_(self.project.bias)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """Words (..., W, D_in) and which are real, as many or (..., W) to be repeated -> (..., dim)."""
        absent, size = ~mask.unsqueeze(-1), words.shape[-1]
        weights = [piece for layer in self.windows for piece in torch.split(layer.weight, size, 1)]  # type: ignore[arg-type]
        answers = F.linear(words.masked_fill(absent, 0.0), torch.cat(weights))
        if torch.compiler.is_compiling():
            found = best_ngrams_compiled(answers, absent)
        elif torch.is_grad_enabled() and answers.requires_grad:
            found = BestNgrams.apply(answers, absent)  # type: ignore[no-untyped-call]
        else:
            found = torch.cat([sums.amax(-2) for sums in _ngram_sums(answers, absent)], -1)
        # A text without a single word has the answers to nothing, minus infinity, which ReLU makes zero.
        biases = torch.cat([layer.bias for layer in self.windows])  # type: ignore[misc]
        return self.project(torch.relu(found + biases))  # type: ignore[no-any-return]


def _split_by_ngram(answers: Tensor) -> list[list[Tensor]]:
    """(..., W, 6 F) by window, and then by the word in the window: (..., W, F) each."""
    pieces = iter(torch.split(answers, answers.shape[-1] // sum(NGRAM_SIZES), -1))
    return [[next(pieces) for _ in range(count)] for count in NGRAM_SIZES]


def _ngram_sums(answers: Tensor, absent: Tensor) -> list[Tensor]:
    """Answers to the windows that begin at each word (..., W, F), minus infinity where there is no word."""
    found = []
    for first, *others in _split_by_ngram(answers):
        total = first.masked_fill(absent, -torch.inf)
        for by, other in enumerate(others, 1):
            total[..., :-by, :] += other[..., by:, :]
        found.append(total)
    return found


def best_ngrams_compiled(answers: Tensor, absent: Tensor) -> Tensor:
    """What ``BestWindows`` gives, by steps that compilers know the gradients of, without changing anything in place."""
    found = []
    for first, *others in _split_by_ngram(answers):
        for by, other in enumerate(others, 1):
            first = first + F.pad(other[..., by:, :], (0, 0, 0, min(by, other.shape[-2])))
        total = first.masked_fill(absent, -torch.inf)
        found.append(total.max(-2).values if torch.is_grad_enabled() else total.amax(-2))
    return torch.cat(found, -1)


class BestNgrams(Function):
    """The largest answer to a window of each filter.

    Its gradient goes to the words of one window, the first of equals, and is written there; automatic differentiation
    would go over all answers several times.
    """

    @staticmethod
    def forward(ctx: Any, answers: Tensor, absent: Tensor) -> Tensor:
        """Args:
            answers: (..., W, 6 F) of all filters' pieces to single words: those of F unigrams, the first and the second
                of F bigrams, and the three of trigrams.
            absent: (..., W, 1) True where there is no word, as many or to be repeated.

        Returns:
            (..., 3 F).
        """
        found = [sums.max(-2) for sums in _ngram_sums(answers, absent)]
        ctx.save_for_backward(*(places for _, places in found))
        ctx.shape = answers.shape
        return torch.cat([best for best, _ in found], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_best: Tensor) -> tuple[Tensor, None]:
        """The gradient at the words of the best window; nothing where it reaches beyond the last place."""
        of_answers, last = of_best.new_zeros(ctx.shape), ctx.shape[-2] - 1
        given = torch.split(of_best, of_best.shape[-1] // len(NGRAM_SIZES), -1)
        for pieces, places, gradient in zip(_split_by_ngram(of_answers), ctx.saved_tensors, given, strict=True):
            for by, piece in enumerate(pieces):
                there = gradient.masked_fill(places > last - by, 0.0) if by else gradient
                piece.scatter_(-2, (places + by).clamp_(max=last).unsqueeze(-2), there.unsqueeze(-2))
        return of_answers, None
