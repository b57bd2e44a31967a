"""Texts read by a recurrent network, packed or padded; both give the same."""

from __future__ import annotations

import warnings
from typing import Protocol

import torch
from torch import Tensor, nn


class Read(Protocol):
    """What a recurrent network made of texts; its directions are averaged."""

    @property
    def states(self) -> Tensor:
        """(N, W, hidden) of each word; what stands where there is none has no meaning."""

    @property
    def last(self) -> Tensor:
        """(N, hidden) after the last word that a direction reads."""


class PackedRead:
    """Reads words (N, W, D) without their padding."""

    def __init__(self, network: nn.GRU | nn.LSTM, vectors: Tensor, lengths: Tensor) -> None:
        self._network, self._places = network, vectors.shape[1]
        packed = nn.utils.rnn.pack_padded_sequence(
            vectors, lengths.squeeze(1).cpu(), batch_first=True, enforce_sorted=False
        )
        self._packed, last = network(packed)
        self._last: Tensor = last if isinstance(network, nn.GRU) else last[0]

    @property
    def states(self) -> Tensor:
        """By place."""
        states: Tensor
        states, _ = nn.utils.rnn.pad_packed_sequence(self._packed, batch_first=True, total_length=self._places)
        if not self._network.bidirectional:
            return states
        return (states[..., : self._network.hidden_size] + states[..., self._network.hidden_size :]) / 2

    @property
    def last(self) -> Tensor:
        """Of either direction."""
        return self._last.mean(0)


class PaddedRead:
    """Reads words (N, W, D) and then their padding.

    Backwards, a text's own words are turned round first and its padding stays behind them, so that no state of a real
    word has seen padding.
    """

    def __init__(self, network: nn.GRU | nn.LSTM, vectors: Tensor, lengths: Tensor) -> None:
        self._lengths = lengths
        self._runs = [_one_way(network, vectors, "")]
        if network.bidirectional:
            self._runs.append(_one_way(network, turned(vectors, lengths), "_reverse"))

    @property
    def states(self) -> Tensor:
        """By place."""
        return joined(self._runs, self._lengths)

    @property
    def last(self) -> Tensor:
        """Of either direction."""
        return torch.stack([at(states, self._lengths - 1) for states in self._runs]).mean(0)


def _one_way(network: nn.GRU | nn.LSTM, vectors: Tensor, suffix: str) -> Tensor:
    """The states (N, W, hidden) of one direction."""
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    weights = [getattr(network, f"{name}{suffix}") for name in names]
    start = vectors.new_zeros(1, len(vectors), network.hidden_size)
    rest = (weights, True, 1, 0.0, network.training, False, True)
    with warnings.catch_warnings():
        # Both directions lie in one block of memory; half of it is copied, which is little beside the reading.
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
        found = (
            torch.gru(vectors, start, *rest)
            if isinstance(network, nn.GRU)
            else torch.lstm(vectors, (start, start), *rest)
        )
    return found[0]


def joined(runs: list[Tensor], lengths: Tensor) -> Tensor:
    """The states of a text's words in their order, averaged over the directions."""
    return runs[0] if len(runs) == 1 else (runs[0] + turned(runs[1], lengths)) / 2


def turned(states: Tensor, lengths: Tensor) -> Tensor:
    """The first ``lengths`` (N, 1) places of (N, W, D) in reverse order, the others where they are."""
    places = torch.arange(states.shape[1], device=states.device).unsqueeze(0)
    order = torch.where(places < lengths, lengths - 1 - places, places)
    return states.gather(1, order.unsqueeze(-1).expand(-1, -1, states.shape[2]))


def at(states: Tensor, places: Tensor) -> Tensor:
    """The states at one place each (N, 1) of (N, W, D)."""
    return states.gather(1, places.unsqueeze(-1).expand(-1, -1, states.shape[2])).squeeze(1)
