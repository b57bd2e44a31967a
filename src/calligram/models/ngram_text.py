"""Words in windows of one, two and three, the largest answer of each filter, and a linear map (mmca)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

WINDOWS = (1, 2, 3)


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
        self.windows = nn.ModuleList(nn.Linear(size * dim_in, filters) for size in WINDOWS)
        self.project = nn.Linear(len(WINDOWS) * filters, dim)
        nn.init.xavier_uniform_(self.project.weight)
        nn.init.zeros_(self.project.bias)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """Words (..., W, D_in) and which are real, as many or (..., W) to be repeated -> (..., dim)."""
        absent, size = ~mask.unsqueeze(-1), words.shape[-1]
        weights = [piece for layer in self.windows for piece in torch.split(layer.weight, size, 1)]  # type: ignore[arg-type]
        answers = F.linear(words.masked_fill(absent, 0.0), torch.cat(weights))
        if torch.compiler.is_compiling():
            found = traced_best(answers, absent)
        elif torch.is_grad_enabled() and answers.requires_grad:
            found = BestWindows.apply(answers, absent)  # type: ignore[no-untyped-call]
        else:
            found = torch.cat([sums.amax(-2) for sums in _sums(answers, absent)], -1)
        # A text without a single word has the answers to nothing, minus infinity, which ReLU makes zero.
        biases = torch.cat([layer.bias for layer in self.windows])  # type: ignore[misc]
        return self.project(torch.relu(found + biases))  # type: ignore[no-any-return]


def _of_windows(answers: Tensor) -> list[list[Tensor]]:
    """(..., W, 6 F) by window, and then by the word in the window: (..., W, F) each."""
    pieces = iter(torch.split(answers, answers.shape[-1] // sum(WINDOWS), -1))
    return [[next(pieces) for _ in range(count)] for count in WINDOWS]


def _sums(answers: Tensor, absent: Tensor) -> list[Tensor]:
    """Answers to the windows that begin at each word (..., W, F), minus infinity where there is no word."""
    found = []
    for first, *others in _of_windows(answers):
        total = first.masked_fill(absent, -torch.inf)
        for by, other in enumerate(others, 1):
            total[..., :-by, :] += other[..., by:, :]
        found.append(total)
    return found


def traced_best(answers: Tensor, absent: Tensor) -> Tensor:
    """What ``BestWindows`` gives, by steps that compilers know the gradients of, without changing anything in place."""
    found = []
    for first, *others in _of_windows(answers):
        for by, other in enumerate(others, 1):
            first = first + F.pad(other[..., by:, :], (0, 0, 0, min(by, other.shape[-2])))
        total = first.masked_fill(absent, -torch.inf)
        found.append(total.max(-2).values if torch.is_grad_enabled() else total.amax(-2))
    return torch.cat(found, -1)


class BestWindows(Function):
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
        found = [sums.max(-2) for sums in _sums(answers, absent)]
        ctx.save_for_backward(*(places for _, places in found))
        ctx.shape = answers.shape
        return torch.cat([best for best, _ in found], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_best: Tensor) -> tuple[Tensor, None]:
        """The gradient at the words of the best window; nothing where it reaches beyond the last place."""
        of_answers, last = of_best.new_zeros(ctx.shape), ctx.shape[-2] - 1
        given = torch.split(of_best, of_best.shape[-1] // len(WINDOWS), -1)
        for pieces, places, gradient in zip(_of_windows(of_answers), ctx.saved_tensors, given, strict=True):
            for by, piece in enumerate(pieces):
                there = gradient.masked_fill(places > last - by, 0.0) if by else gradient
                piece.scatter_(-2, (places + by).clamp_(max=last).unsqueeze(-2), there.unsqueeze(-2))
        return of_answers, None
