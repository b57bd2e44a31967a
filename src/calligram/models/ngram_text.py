"""Words in windows of one, two and three, the largest answer of each filter, and a linear map (mmca)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WINDOWS = (1, 2, 3)


class NgramText(nn.Module):
    """Uni-, bi- and trigram filters with ReLU, their maximum over a text's words, and a linear map (mmca, Eqs. 6, 7).

    A window begins at each word and may reach beyond the last, where there are zeros: Eq. 6 has as many places as
    there are words, and a text of one word has a bigram so. ReLU and bias follow the maximum, which they keep.
    Eq. 7 prints layer norm where the text says length one: vectors are left as they are, and compared by cosine.
    """

    def __init__(self, dim_in: int, filters: int, dim: int) -> None:
        super().__init__()
        self.windows = nn.ModuleList(nn.Linear(size * dim_in, filters) for size in WINDOWS)
        self.project = nn.Linear(len(WINDOWS) * filters, dim)
        nn.init.xavier_uniform_(self.project.weight)
        nn.init.zeros_(self.project.bias)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """Words (..., W, D_in) and which are real, as many or (..., W) to be repeated -> (..., dim)."""
        real = mask.unsqueeze(-1)
        places, size = words.shape[-2:]
        words = F.pad(words.masked_fill(~real, 0.0), (0, 0, 0, WINDOWS[-1] - 1))
        # One copy holds the windows of all sizes: a shorter one is the beginning of a longer one.
        spans = torch.cat([words[..., by : by + places, :] for by in range(WINDOWS[-1])], -1)
        found = []
        for count, layer in zip(WINDOWS, self.windows, strict=True):
            assert isinstance(layer, nn.Linear)
            answers = F.linear(spans[..., : count * size], layer.weight).masked_fill(~real, -torch.inf)
            found.append(answers.amax(-2) + layer.bias)
        # A text without a single word has the answers to nothing, minus infinity, which ReLU makes zero.
        return self.project(torch.relu(torch.cat(found, -1)))  # type: ignore[no-any-return]
