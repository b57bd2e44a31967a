"""MMCA's pair module over all pairs: ours, one batched PyTorch layer over all stacked pairs, and a loop over pairs.

The layer is ``nn.TransformerEncoderLayer`` with the same weights, over all pairs' stacked and padded parts at once, in
tiles that fit into memory, followed by the same pools. It runs in autocast as ours does and, where nothing is learnt,
as a whole in bfloat16 too, which lets it take PyTorch's own fused path; ours is compared with the quicker. The limit is
the time of the matrix products alone that no pair can do without: output map, inner layers and windows of words.
On an accelerator a training step is also told by how long the device works and how many kernels it is given: the rest
is waiting for the next one.

    python bench/run.py mmca
    python bench/mmca.py ROWS    # each row as a line of JSON, as soon as it is measured
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

import torch
from fragments import timed
from mmca_layer import Layer, by_pair, lowest
from mmca_limits import both_ways, products, shapes, timed_best, worked
from torch import Tensor, nn

from calligram.device import use_compile, use_cuda_graphs, use_kernels
from calligram.losses.ranking import bidirectional_ranking_loss
from calligram.models.layers import score_tiles
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.matcher import Encoded
from calligram.models.mmca import MMCA, MMCASettings
from calligram.training.batches.batch import Batch
from calligram.training.objectives.candidates import RetrieveRerankObjective
from calligram.training.objectives.objective import RankingObjective
from calligram.vectors import unit_length

Row = dict[str, object]
Rows = Callable[[str, float, str], Row]
FEATURES, STATES, CANDIDATES = 2048, 384, 8


class Sizes(NamedTuple):
    """What is measured."""

    images: int = 1000
    texts: int = 5000
    regions: int = 36
    words: int = 20
    dim: int = 256
    heads: int = 16
    batch: int = 64
    part: int = 500
    """texts that the layer is timed on, and the products alone; the time for all is in proportion"""
    loop: int = 64
    """pairs that the loop is timed on"""
    stacked: int = 4096
    """pairs in a tile of the layer"""
    times: int = 2


SMALL = Sizes(images=40, texts=80, batch=8, part=80, loop=8, stacked=128, times=3)
"""for a CPU"""


def mmca(row: Rows, sizes: Sizes | None = None) -> list[Row]:
    """A training step and scoring: on an accelerator in bfloat16, then in single precision.

    All that is asked about is measured in the first of them. The other is of a part of the texts and not compiled.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = sizes or (Sizes() if device == "cuda" else SMALL)
    found: list[Row] = []
    for number, precision in enumerate(("bf16", "fp32") if device == "cuda" else ("fp32",)):
        first = not number
        sizes = sizes if first else sizes._replace(texts=sizes.part)
        torch.manual_seed(0)
        text = TextArchitecture("states", state_dim=STATES)
        own = MMCASettings(
            ImageArchitecture(feature_dim=FEATURES), text, sizes.dim, heads=sizes.heads, filters=sizes.dim
        )
        matcher = MMCA(own).to(device)
        compiles = first and device == "cuda"
        if compiles:
            found += kernels_against_plain(row, matcher, sizes, device)
        found += training(row, matcher, sizes, device, precision, compiles=compiles)
        for varied in (False, True) if first else (False,):
            found += scoring(row, matcher, sizes, device, precision, varied=varied, compiles=compiles)
    return found


def lowered(device: str, precision: str) -> contextlib.AbstractContextManager[object]:
    return torch.autocast(device, torch.bfloat16, enabled=precision == "bf16")


def items(matcher: MMCA, sizes: Sizes, device: str, precision: str, *, varied: bool) -> tuple[Encoded, Encoded]:
    """Encoded images, and texts of as many words each, or of as many as Flickr's captions have pieces."""
    with torch.no_grad(), lowered(device, precision):
        images = matcher.encode_images(torch.randn(sizes.images, sizes.regions, FEATURES, device=device))
        mask = masks(sizes.texts, sizes.words, device, varied=varied)
        return images, matcher.encode_texts(torch.randn(*mask.shape, STATES, device=device), mask)


def masks(count: int, words: int, device: str, *, varied: bool) -> Tensor:
    lengths = torch.full((count,), words)
    if varied:
        lengths = (14 + 4 * torch.randn(count)).round().clamp(5, 40).long()
    return (torch.arange(int(lengths.max())) < lengths[:, None]).to(device)


@torch.no_grad()
def scoring(
    row: Rows, matcher: MMCA, sizes: Sizes, device: str, precision: str, *, varied: bool, compiles: bool
) -> list[Row]:
    """All pairs of a test set; texts of as many words each, or of 14 on average."""
    matcher.eval()
    images, texts = items(matcher, sizes, device, precision, varied=varied)
    part, share, layer = texts.rows(slice(0, sizes.part)), sizes.texts / sizes.part, Layer(matcher).eval()
    words = "14 words on average" if varied else f"{sizes.words} words each"
    name = (
        f"mmca, {sizes.images} x {sizes.texts}, {sizes.regions} regions, {words}, {sizes.dim} dimensions, {precision}"
    )
    with lowered(device, precision):
        matcher.score(images, part)
        ours = timed(device, lambda: matcher.score(images, texts), sizes.times)
        theirs = share * timed_best(device, lambda: layer.grid(images, part, sizes.stacked), 2)
        expected = unit_length(images.vectors) @ unit_length(part.vectors).T + 0.2 * layer.grid(
            images, part, sizes.stacked
        )
        apart = {"": float((matcher.score(images, part) - expected).abs().max())}
    found = [row(f"{name}: scoring", ours, "s")]
    ways = {"": ours}
    if compiles:
        way = ", without kernels"
        with use_kernels(False), lowered(device, precision):
            matcher.score(images, part)
            ways[way] = timed(device, lambda: matcher.score(images, texts), sizes.times)
            apart[way] = float((matcher.score(images, part) - expected).abs().max())
        found.append(row(f"{name}: scoring{way}", ways[way], "s"))
    if precision == "bf16":
        low, (one, two) = Layer(matcher).eval().bfloat16(), (Encoded(*map(lowest, side)) for side in (images, part))
        whole = share * timed_best(device, lambda: low.grid(one, two, sizes.stacked), 2)
        found.append(row(f"{name}: the layer in autocast, from {sizes.part} texts", theirs, "s"))
        found.append(row(f"{name}: the layer all in bfloat16, from {sizes.part} texts", whole, "s"))
        theirs = min(theirs, whole)
    with lowered(device, precision):
        loop = timed_best(device, lambda: by_pair(layer, images, part, sizes.loop), 1)
    loop *= sizes.images * sizes.texts / sizes.loop
    limit, best = share * products(part, sizes.images, sizes.regions, sizes.dim, precision), min(ways.values())
    found += [
        row(f"{name}: the layer over all pairs, from {sizes.part} texts", theirs, "s"),
        *(
            row(f"{name}: the layer's time against ours{way}", theirs / seconds, "ratio")
            for way, seconds in ways.items()
        ),
        *(row(f"{name}: largest difference from the layer{way}", value, "score") for way, value in apart.items()),
        row(f"{name}: the loop over pairs, from {sizes.loop} pairs", loop, "s"),
        row(f"{name}: the loop's time against ours", loop / best, "ratio"),
        row(f"{name}: the matrix products alone", limit, "s"),
        row(f"{name}: the matrix products alone against ours", limit / best, "ratio"),
    ]
    if compiles and not varied:
        found += tiles(row, name, lambda: matcher.score(images, part), precision, device)
    return found


def tiles(row: Rows, name: str, score: Callable[[], Tensor], precision: str, device: str) -> list[Row]:
    """Ours with smaller and larger tiles."""
    before, found = score_tiles.TILE_PRODUCTS[device], []
    for factor in (0.25, 1, 4):
        score_tiles.TILE_PRODUCTS[device] = int(before * factor)
        with lowered(device, precision):
            found.append(row(f"{name}: a tenth, tiles {factor} as large", timed_best(device, score, 1), "s"))
    score_tiles.TILE_PRODUCTS[device] = before
    return found


def training(row: Rows, matcher: MMCA, sizes: Sizes, device: str, precision: str, *, compiles: bool) -> list[Row]:
    """Heads of the encoders, pair module, hinge with the hardest negatives, backward, Adam."""
    found: list[Row] = []
    name = f"mmca, training step of {sizes.batch} x {sizes.regions} regions x {sizes.words} words x {sizes.dim}"
    name += f", {precision}"
    torch.manual_seed(0)
    features = torch.randn(sizes.batch, sizes.regions, FEATURES, device=device)
    mask = masks(sizes.batch, sizes.words, device, varied=False)
    states = torch.randn(*mask.shape, STATES, device=device)
    matcher.train()
    ways: dict[str, Way] = {"ours": Way()}
    if device == "cuda":
        ways["ours, replayed"] = Way(replayed=True)
    ways["the layer over all pairs"] = Way(layer=True)
    if compiles:  # last, since a minute goes by first
        ways["ours, compiled"] = Way(compiled=True)
        ways["ours, compiled and replayed"] = Way(compiled=True, replayed=True)
    few = stepper(deepcopy(matcher), None, (features, states, mask), precision, candidates=CANDIDATES)
    seconds_few = timed_best(device, few, 4 * sizes.times)
    found.append(row(f"{name}: ours, {CANDIDATES} candidates of each item", seconds_few * 1000, "ms"))
    seconds, losses = {}, {}
    for way, how in ways.items():
        layer = Layer(matcher).train() if how.layer else None
        step = stepper(deepcopy(matcher), layer, (features, states, mask), precision)
        with use_compile(how.compiled), use_cuda_graphs(how.replayed):
            losses[way] = step()
            for _ in range(3):
                step()
            seconds[way] = timed_best(device, step, 4 * sizes.times)
            found.append(row(f"{name}: {way}", seconds[way] * 1000, "ms"))
            if device == "cuda":
                busy, kernels = worked(step)
                found.append(row(f"{name}: {way}, the device works", busy * 1000, "ms"))
                found.append(row(f"{name}: {way}, kernels and copies", kernels, "count"))
    theirs = seconds["the layer over all pairs"]
    own = [way for way, how in ways.items() if not how.layer]
    for way in own:
        found.append(row(f"{name}: the layer's time against {way}", theirs / seconds[way], "ratio"))
        apart = abs(losses[way] - losses["the layer over all pairs"])
        found.append(row(f"{name}: difference of the first loss, {way}", apart, "loss"))
    pairs, best = sizes.batch**2, min(seconds[way] for way in own)
    limit = both_ways(shapes(pairs, sizes.regions, sizes.words, sizes.dim), device, precision)
    found.append(row(f"{name}: the matrix products alone, both ways", limit * 1000, "ms"))
    found.append(row(f"{name}: the matrix products alone against ours", limit / best, "ratio"))
    return found


def kernels_against_plain(row: Rows, matcher: MMCA, sizes: Sizes, device: str) -> list[Row]:
    """Largest differences in bfloat16 between the kernels and the plain path, and between the plain path and float32:
    of scores, and of the gradients of parts as a share of the largest one; for all pairs, and for as many aligned ones.

    The largest n-gram of a text may be another one after rounding, and its gradient is then that of another word.
    """
    found: list[Row] = []
    some = sizes._replace(images=sizes.batch, texts=sizes.batch)
    images, texts = items(matcher, some, device, "bf16", varied=True)
    pairs = torch.arange(sizes.batch, device=device)
    for name, aligned in (("all pairs", False), ("aligned pairs", True)):
        results = []
        for fused, precision in ((True, "bf16"), (False, "bf16"), (False, "fp32")):
            parts = [side.parts.detach().float().requires_grad_() for side in (images, texts) if side.parts is not None]
            one, two = images._replace(parts=parts[0]), texts._replace(parts=parts[1])
            with use_kernels(fused), lowered(device, precision):
                scores = matcher.score_some(one, two, pairs, pairs) if aligned else matcher.score(one, two)
            results.append((scores.detach(), *torch.autograd.grad(scores.float().square().sum(), parts)))
        kernels, plain, exact = results
        for compared, one, two in (("", kernels, plain), (", plain path against float32", plain, exact)):
            apart = [float((first - second).abs().max()) for first, second in zip(one, two, strict=True)]
            most = [float(each.abs().max()) for each in exact[1:]]
            share = max(each / largest for each, largest in zip(apart[1:], most, strict=True))
            title = f"mmca, kernels, {name}, bf16{compared}"
            found.append(row(f"{title}: largest difference of scores", apart[0], "score"))
            found.append(row(f"{title}: largest difference of gradients", share, "share"))
    return found


class Way(NamedTuple):
    """How a step is taken."""

    compiled: bool = False
    replayed: bool = False
    layer: bool = False


def stepper(
    matcher: MMCA, layer: Layer | None, given: tuple[Tensor, Tensor, Tensor], precision: str, candidates: int = 0
) -> Callable[[], float]:
    """A step, by ours or by the layer; with candidates, of those, and of the vectors."""
    features, states, mask = given
    device, count = features.device.type, len(features)
    parameters = [*matcher.parameters(), *(layer.parameters() if layer is not None else ())]
    optimizer = torch.optim.Adam(parameters, 2e-4, fused=device == "cuda")
    target = 2 * torch.eye(count, dtype=torch.int64, device=device) - 1
    groups = torch.arange(count, device=device)
    batch = Batch(features, states, mask, target, target, groups, groups)
    objective = RetrieveRerankObjective(RankingObjective(0.2, 1), candidates)

    def step() -> float:
        with lowered(device, precision):
            if layer is None:
                terms = objective(matcher, batch)
            else:
                images, texts = matcher.encode_images(features), matcher.encode_texts(states, mask)
                scores = unit_length(images.vectors) @ unit_length(texts.vectors).T + 0.2 * layer.grid(
                    images, texts, count**2
                )
                terms = {"ranking": bidirectional_ranking_loss(scores, target, margin=0.2, top_k=1) / count}
        loss = torch.stack(list(terms.values())).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_([p for p in parameters if p.grad is not None], 2.0)
        optimizer.step()
        return float(loss.detach())

    return step


def main() -> None:
    with Path(sys.argv[1]).open("a", encoding="utf-8") as file:

        def written(what: str, value: float, unit: str) -> Row:
            found: Row = {"what": what, "value": float(f"{value:.4g}"), "unit": unit}
            file.write(json.dumps(found) + "\n")
            file.flush()
            print(f"{what}: {value:.4g} {unit}", flush=True)
            return found

        mmca(written)


if __name__ == "__main__":
    main()
