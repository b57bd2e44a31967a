"""Attention between all regions and all words: ours, and scan's published loop over captions, in one run.

The loop is its arithmetic (t-i, LogSumExp) transcribed: caption by caption, with every attended vector built, for 128
images at a time as the release scores a test set. It is timed on a part, and its time for the whole is in proportion.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from statistics import median
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calligram.device import use_cuda_graphs, use_kernels
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.matcher import Encoded
from calligram.models.scan import SCAN, SCANSettings
from calligram.training.batches.batch import Batch
from calligram.training.objectives.objective import RankingObjective
from calligram.training.speed_trial import use_tf32

Row = dict[str, object]
REGIONS, DIM, SHARD = 36, 1024, 128
WORDS = 8000
"""in the vocabulary"""


class Sizes(NamedTuple):
    """What is measured."""

    images: int = 1000
    texts: int = 5000
    part: int = 64
    """captions that the loop is timed on"""
    batch: int = 128
    """pairs of a training step"""


def fragments(row: Callable[[str, float, str], Row], sizes: Sizes = Sizes()) -> list[Row]:  # noqa: B008  frozen
    """Scoring; and a training step where there is an accelerator."""
    context = multiprocessing.get_context("spawn")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        times = pool.submit(scoring, device, sizes).result()  # alone: peak memory is a process's
    title = f"scan, {sizes.images} x {sizes.texts}, {REGIONS} regions, {DIM} dimensions"
    if device == "cpu":
        title += f", threads: {torch.get_num_threads()}"
    found = [
        row(f"{title}: scoring", times["ours"], "s"),
        row(f"{title}: the loop, from {sizes.images} x {sizes.part}", times["loop"], "s"),
        row(f"{title}: the loop's time against ours", times["loop"] / times["ours"], "ratio"),
        row(f"{title}: the matrix product alone against ours", times["product"] / times["ours"], "ratio"),
        row(f"{title}: largest difference from the loop", times["difference"], "score"),
        row(f"{title}: peak memory", times["gigabytes"], "GB"),
    ]
    if device == "cuda":
        found += [
            row(f"{title}: scoring at once", times["whole"], "s"),
            row(f"{title}: scoring at once in bf16", times["lower"], "s"),
            row(f"{title}: scoring at once without kernels", times["whole, plain"], "s"),
            row(f"{title}: scoring at once in bf16 without kernels", times["lower, plain"], "s"),
        ]
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            apart = pool.submit(kernels_against_plain, device, sizes).result()
        found += [
            row(f"scan, {sizes.batch} x {sizes.batch}: kernels against the plain path, {what}", value, unit)
            for what, (value, unit) in apart.items()
        ]
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            apart = pool.submit(tf32_against_float32, device, sizes).result()
        found += [
            row(f"scan, {sizes.batch} x {sizes.batch}: products in TF32 against float32: {what}", value, unit)
            for what, (value, unit) in apart.items()
        ]
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            steps = pool.submit(training, device, sizes).result()
        name = f"scan, training step of {sizes.batch} x {REGIONS} x {DIM}"
        found += [row(f"{name}: {what}", seconds * 1000, "ms") for what, seconds in steps.items()]
        best = steps["ours by default: replayed, products in TF32"]
        found.append(row(f"{name}: the loop's time against ours", steps["the loop"] / best, "ratio"))
    return found


def items(device: str, images: int, texts: int) -> tuple[Encoded, Encoded]:
    """Unit vectors; captions as long as Flickr's, 13 words with the marks of their ends."""
    random = torch.Generator().manual_seed(0)
    lengths = (13 + 4 * torch.randn(texts, generator=random)).round().clamp(5, 40).long()
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    regions = _normalised(torch.randn(images, REGIONS, DIM, generator=random))
    words = _normalised(torch.randn(*mask.shape, DIM, generator=random)).mul_(mask.unsqueeze(-1))
    one = Encoded(regions.mean(1), regions)
    return one.to(device), Encoded(words.mean(1), words, mask).to(device)


def _small_matcher() -> SCAN:
    """Its towers are not used."""
    text = TextArchitecture(vocabulary=4, word_dim=8, hidden=8, bidirectional=True)
    return SCAN(SCANSettings(ImageArchitecture(feature_dim=8), text, DIM))


def _normalised(vectors: Tensor) -> Tensor:
    """In place, since a copy would count as memory of the scoring."""
    return vectors.div_(vectors.norm(dim=-1, keepdim=True))


@torch.no_grad()
def scoring(device: str, sizes: Sizes) -> dict[str, float]:
    """Seconds of ours, of the loop, and of the one matrix product that neither can do without, over unpadded words.

    In turns, a quarter of the images at a time: a machine that slows down slows all three.
    """
    matcher = _small_matcher()
    images, texts = items(device, sizes.images, sizes.texts)
    assert images.parts is not None
    assert texts.parts is not None
    assert texts.mask is not None
    lengths = texts.mask[: sizes.part].sum(1).tolist()
    share = sizes.texts / sizes.part
    more = min(8 * sizes.part, sizes.texts)  # the product is so much quicker that a part of its own is wanted
    words = texts.parts[:more][texts.mask[:more]].T
    ways: dict[str, tuple[float, Callable[[Encoded], Tensor]]] = {
        "ours": (1.0, lambda some: matcher.score(some, texts)),
        "loop": (share, lambda some: by_shards(some, texts, lengths)),
        "product": (sizes.texts / more, lambda some: product(some, words)),
    }
    times = 1 if device == "cpu" else 5
    quarters = torch.arange(sizes.images).chunk(4)
    seconds = dict.fromkeys(ways, 0.0)
    difference = 0.0
    for _, work in ways.values():
        work(images.rows(slice(0, 32)))
    for quarter in quarters:
        some = images.rows(slice(int(quarter[0]), int(quarter[-1]) + 1))
        for name, (factor, work) in ways.items():
            seconds[name] += factor * timed(device, lambda work=work, some=some: work(some), times)  # type: ignore[misc]
        both = by_shards(some, texts, lengths), matcher.score(some, texts.rows(slice(0, sizes.part)))
        difference = max(difference, float((both[0] - both[1]).abs().max()))
    found = {**seconds, "difference": difference, "gigabytes": _peak(device) / 1e9}
    if device == "cuda":
        for name, fused in (("", True), (", plain", False)):
            for way, lower in (("whole", False), ("lower", True)):
                with use_kernels(fused), torch.autocast(device, torch.bfloat16, enabled=lower):
                    matcher.score(images, texts)  # the kernel is compiled at its first use
                    found[way + name] = timed(device, lambda: matcher.score(images, texts), times)
    return found


def kernels_against_plain(device: str, sizes: Sizes) -> dict[str, tuple[float, str]]:
    """Largest differences of scores, of a loss, and of its gradients; of gradients as a share of the largest one.

    Both in float32, and both in bfloat16.
    """
    matcher = _small_matcher()
    images, texts = items(device, sizes.batch, sizes.batch)
    assert images.parts is not None
    assert texts.parts is not None
    found = {}
    for name, lower in (("fp32", False), ("bf16", True)):
        results = []
        for fused in (True, False):
            parts = [side.detach().clone().requires_grad_() for side in (images.parts, texts.parts)]
            with use_kernels(fused), torch.autocast(device, torch.bfloat16, enabled=lower):
                scores = matcher.score(images._replace(parts=parts[0]), texts._replace(parts=parts[1]))
                loss = _hinge(scores)
                results.append((scores.detach(), loss.detach(), *torch.autograd.grad(loss, parts)))
        scores, loss, *gradients = (float((one - two).abs().max()) for one, two in zip(*results, strict=True))
        largest = [float(gradient.abs().max()) for gradient in results[1][2:]]
        found[f"{name}: largest difference of scores"] = scores, "score"
        found[f"{name}: difference of the loss"] = loss, "loss"
        found[f"{name}: largest difference of gradients"] = (
            max(one / two for one, two in zip(gradients, largest, strict=True)),
            "share",
        )
    return found


def tf32_against_float32(device: str, sizes: Sizes) -> dict[str, tuple[float, str]]:
    """Differences of a loss and of its gradients with products in TF32; of gradients, as a share of the largest one."""
    torch.manual_seed(0)
    matcher, features, words, mask = _trained_matcher(device, sizes)
    results = []
    for on in (True, False):
        with use_tf32(on):
            images, texts = matcher.encode_images(features), matcher.encode_texts(words, mask)
            loss = _hinge(matcher.score(images, texts))
            gradients = torch.autograd.grad(loss, list(matcher.parameters()), allow_unused=True)
            results.append((loss.detach(), torch.cat([g.flatten() for g in gradients if g is not None])))
    (loss, gradient), (plain_loss, plain) = results
    return {
        "difference of the loss": (float((loss - plain_loss).abs() / plain_loss), "share"),
        "largest difference of gradients": (float((gradient - plain).abs().max() / plain.abs().max()), "share"),
    }


class Way(NamedTuple):
    """How a step is taken."""

    lower: bool = False
    """in bfloat16"""
    replayed: bool = False
    """as CUDA graphs, which ``speed=auto`` chooses where steps are short"""
    fused: bool = True
    """with kernels"""
    tf32: bool = False
    """with matrix products of float32 in TF32, as ``speed=auto`` takes them"""
    loop: bool = False
    """by the published loop"""


WAYS = {
    "ours": Way(),
    "ours in bf16": Way(lower=True),
    "ours, replayed": Way(replayed=True),
    "ours by default: replayed, products in TF32": Way(replayed=True, tf32=True),
    "ours in bf16, replayed": Way(lower=True, replayed=True),
    "ours, replayed, without kernels": Way(replayed=True, fused=False),
    "ours in bf16, replayed, without kernels": Way(lower=True, replayed=True, fused=False),
    "the loop": Way(loop=True),
}
"""training steps that are measured"""


def training(device: str, sizes: Sizes) -> dict[str, float]:
    """Encoders, similarity, hinge with the hardest negatives, backward, Adam: ours in both precisions, and the loop."""
    torch.manual_seed(0)
    found = {}
    for name, way in WAYS.items():
        step = _step(*_trained_matcher(device, sizes), way)
        with use_kernels(way.fused), use_cuda_graphs(way.replayed), use_tf32(way.tf32):
            for _ in range(4):
                step()
            found[name] = timed(device, step, 3 if way.loop else 20)
    return found


def _trained_matcher(device: str, sizes: Sizes) -> tuple[SCAN, Tensor, Tensor, Tensor]:
    """A matcher, and features, words and mask of a batch."""
    matcher = SCAN(
        SCANSettings(ImageArchitecture(), TextArchitecture(vocabulary=WORDS, hidden=DIM, bidirectional=True), DIM)
    ).to(device)
    lengths = (13 + 4 * torch.randn(sizes.batch)).round().clamp(5, 40).long()
    mask = (torch.arange(int(lengths.max())) < lengths[:, None]).to(device)
    words = torch.randint(4, WORDS, tuple(mask.shape), device=device) * mask
    return matcher, torch.randn(sizes.batch, REGIONS, 2048, device=device), words, mask


def _step(matcher: SCAN, features: Tensor, words: Tensor, mask: Tensor, way: Way) -> Callable[[], None]:
    device, count, lengths = features.device.type, len(features), mask.sum(1).tolist()
    optimizer = torch.optim.Adam(matcher.parameters(), 2e-4, fused=device == "cuda")
    groups = torch.arange(count, device=features.device)
    target = 2 * torch.eye(count, dtype=torch.int64, device=features.device) - 1
    batch, objective = Batch(features, words, mask, target, target, groups, groups), RankingObjective(0.2, 1)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=way.lower):
            if way.loop:
                images, texts = matcher.encode_images(features), matcher.encode_texts(words, mask)
                assert images.parts is not None
                assert texts.parts is not None
                loss = _hinge(published(images.parts, texts.parts, lengths))
            else:
                loss = torch.stack(list(objective(matcher, batch).values())).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(matcher.parameters(), 2.0)
        optimizer.step()

    return step


def _hinge(scores: Tensor) -> Tensor:
    """The hinge loss of the hardest negatives of a batch of pairs."""
    own, others = scores.diagonal(), ~torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    costs = [(0.2 + scores - o).clamp(min=0) * others for o in (own[:, None], own[None])]
    return costs[0].amax(1).sum() + costs[1].amax(0).sum()


def product(images: Encoded, words: Tensor) -> Tensor:
    """All regions with all words (D, W), and nothing done with it; on a CPU into memory that is written over.

    New memory for all of it would cost more than the multiplication.
    """
    assert images.parts is not None
    regions = images.parts.flatten(0, 1)
    if regions.device.type != "cpu":
        return regions @ words
    out = torch.empty(0)
    for some in torch.split(regions, 28 * REGIONS):
        for columns in torch.split(words, 1664, dim=1):
            out = torch.mm(some, columns, out=out.resize_(len(some), columns.shape[1]))
    return out


def by_shards(images: Encoded, texts: Encoded, lengths: list[int]) -> Tensor:
    """``published`` for 128 images at a time, as the release scores a test set."""
    assert images.parts is not None
    assert texts.parts is not None
    return torch.cat([published(shard, texts.parts, lengths) for shard in torch.split(images.parts, SHARD)])


def published(images: Tensor, captions: Tensor, lengths: list[int]) -> Tensor:
    """The scores (I, T) as scan's release computes them."""
    found = []
    for number, length in enumerate(lengths):
        caption = captions[number, :length].unsqueeze(0).contiguous().repeat(len(images), 1, 1)
        attended = _attended(caption, images)
        along = (caption * attended).sum(2)
        lengths_both = caption.norm(2, 2) * attended.norm(2, 2)
        relevance = along / lengths_both.clamp(min=1e-8)
        found.append((6.0 * relevance).exp().sum(dim=1, keepdim=True).log() / 6.0)
    return torch.cat(found, 1)


def _attended(query: Tensor, context: Tensor) -> Tensor:
    batch, words, regions = len(query), query.shape[1], context.shape[1]
    attention = F.leaky_relu(torch.bmm(context, query.transpose(1, 2)), 0.1)
    attention = attention / (attention.pow(2).sum(dim=2, keepdim=True).sqrt() + 1e-8)
    attention = attention.transpose(1, 2).contiguous().view(batch * words, regions)
    attention = torch.softmax(attention * 9.0, dim=1).view(batch, words, regions)
    weights = attention.transpose(1, 2).contiguous()
    return torch.bmm(context.transpose(1, 2), weights).transpose(1, 2)


def timed(device: str, work: Callable[[], object], times: int) -> float:
    """Median seconds."""
    found = []
    for _ in range(times):
        _wait(device)
        began = time.perf_counter()
        work()
        _wait(device)
        found.append(time.perf_counter() - began)
    return median(found)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _peak(device: str) -> float:
    """Largest memory so far, in bytes."""
    if device == "cuda":
        return float(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1e3
