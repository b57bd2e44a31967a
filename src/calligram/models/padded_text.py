"""The recurrent text branch on padded words, for runtimes that cannot pack sequences."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from calligram.models.layers import RecurrentText
from calligram.models.reading import at, joined, turned


class PaddedText(nn.Module):
    """Computes what a ``RecurrentText`` does, in evaluation mode, without packing.

    Each direction of the GRU or LSTM runs over all places; backwards, a text's own words are turned round first and its
    padding stays behind them, so that no state of a real word has seen padding.
    """

    def __init__(self, text: RecurrentText) -> None:
        super().__init__()
        self.words, self.project, self.pooling = text.words, text.project, text.pooling
        suffixes = ("", "_reverse") if text.recurrent.bidirectional else ("",)
        self.directions = nn.ModuleList(_one_way(text.recurrent, suffix) for suffix in suffixes)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """Word numbers (N, W) and their mask -> (N, dim)."""
        lengths = mask.sum(1, keepdim=True).clamp(min=1)
        return self.project(self._pooled(self._runs(words, lengths), mask, lengths))  # type: ignore[no-any-return]

    def states(self, words: Tensor, mask: Tensor) -> Tensor:
        """The same of each word, (N, W, dim), zero where there is none."""
        lengths = mask.sum(1, keepdim=True).clamp(min=1)
        return self.project(joined(self._runs(words, lengths), lengths)) * mask.unsqueeze(-1)  # type: ignore[no-any-return]

    def _runs(self, words: Tensor, lengths: Tensor) -> list[Tensor]:
        """The states of each direction, in the order in which it reads."""
        vectors = self.words(words)
        runs = [self.directions[0](vectors)[0]]
        if len(self.directions) > 1:
            runs.append(self.directions[1](turned(vectors, lengths))[0])
        return runs

    def _pooled(self, runs: list[Tensor], mask: Tensor, lengths: Tensor) -> Tensor:
        if self.pooling == "last":  # of either direction, the state after the text's last step
            return torch.stack([at(states, lengths - 1) for states in runs]).mean(0)
        states = joined(runs, lengths)
        real = mask.unsqueeze(-1)
        if self.pooling == "max":
            return states.masked_fill(~real, -torch.inf).amax(1)
        return (states * real).sum(1) / lengths


def _one_way(both: nn.GRU | nn.LSTM, suffix: str) -> nn.GRU | nn.LSTM:
    one = type(both)(both.input_size, both.hidden_size, batch_first=True)
    weights = {name: getattr(both, f"{name}{suffix}") for name in one.state_dict()}
    one.load_state_dict(weights)
    return one
