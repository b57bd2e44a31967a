"""A training step with and without offline negatives: encoders, scores, loss, gradients, optimiser (aoq, Table 6)."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from calligram.models.bfan import BFAN, BFANSettings
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.matcher import Matcher
from calligram.models.vsrn import VSRN, VSRNSettings
from calligram.training.batches.batch import Batch
from calligram.training.objectives.objective import Objective, RankingObjective
from calligram.training.objectives.offline import OfflineObjective, OfflineTerms

Row = dict[str, object]
WORDS, VOCABULARY = 14, 8481
LOSSES: dict[str, tuple[Objective, int]] = {
    "online": (RankingObjective(0.2, 1), 1),
    "OffTri": (OfflineObjective(OfflineTerms("offline-triplet")), 2),
    "OffQuin": (OfflineObjective(OfflineTerms("offline-quintuplet")), 3),
    "AdapOffQuin": (OfflineObjective(OfflineTerms("adaptive")), 3),
}
"""with how many images, and texts, a pair brings into a batch where none is drawn twice"""


def offline_steps(row: Callable[[str, float, str], Row]) -> list[Row]:
    """The release's sizes on an accelerator, small ones elsewhere."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    pairs, dim, features = (128, 2048, 2048) if device == "cuda" else (16, 64, 128)
    rows = []
    for name in ("VSRN", "BFAN"):
        torch.manual_seed(0)
        matcher: Matcher
        if name == "VSRN":
            matcher = VSRN(
                VSRNSettings(
                    ImageArchitecture(feature_dim=features),
                    TextArchitecture(pooling="last", vocabulary=VOCABULARY, hidden=dim),
                    dim,
                )
            )
        else:
            matcher = BFAN(
                BFANSettings(
                    ImageArchitecture(feature_dim=features),
                    TextArchitecture(vocabulary=VOCABULARY, hidden=dim // 2, bidirectional=True),
                    dim // 2,
                )
            )
        seconds = _measured(matcher.to(device), pairs, features, device)
        title = f"{name}, step of {pairs} pairs x 36 regions of {features}"
        rows += [row(f"{title}: {loss}", 1000 * value, "ms") for loss, value in seconds.items()]
        rows += [
            row(f"{title}: {loss} against online", value / seconds["online"], "ratio")
            for loss, value in seconds.items()
            if loss != "online"
        ]
    return rows


def _measured(matcher: Matcher, pairs: int, features: int, device: str) -> dict[str, float]:
    optimizer = torch.optim.Adam(matcher.parameters(), lr=2e-4, fused=device == "cuda")
    batches = {name: _batch(pairs, share, features, device) for name, (_, share) in LOSSES.items()}
    seconds: dict[str, list[float]] = {name: [] for name in LOSSES}
    for turn in range(13 if device == "cuda" else 4):
        for name, (objective, _) in LOSSES.items():  # in turns, against drift
            if device == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                loss = torch.stack(list(objective(matcher, batches[name]).values())).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if device == "cuda":
                torch.cuda.synchronize()
            if turn > (2 if device == "cuda" else 0):
                seconds[name].append(time.perf_counter() - began)
    return {name: median(times) for name, times in seconds.items()}


def _batch(pairs: int, share: int, features: int, device: str) -> Batch:
    """Pairs, and beside each as many others as a loss wants, all of them distinct."""
    count = share * pairs
    target = torch.zeros(count, count, dtype=torch.int8)
    target[:pairs, :pairs] = 2 * torch.eye(pairs, dtype=torch.int8) - 1
    drawn = torch.arange(count).view(share, pairs).T.repeat_interleave(2, dim=1).contiguous()
    lengths = torch.randint(6, WORDS + 1, (count,))
    batch = Batch(
        torch.randn(count, 36, features),
        torch.randint(4, VOCABULARY, (count, WORDS)),
        torch.arange(WORDS).expand(count, -1) < lengths.unsqueeze(1),
        target,
        target.T.contiguous(),
        torch.arange(count),
        torch.arange(count),
        drawn,
        (pairs, pairs),
    )
    return batch.map_tensors(lambda tensor: tensor.to(device))
